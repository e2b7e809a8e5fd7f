"""Queries on local Spark that are killed again and again, and their results."""
