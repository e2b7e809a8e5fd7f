"""Queries on local Spark that are killed again and again, and what they come to."""
