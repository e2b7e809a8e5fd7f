"""Queries that move from one of Spark's own providers to ours."""
