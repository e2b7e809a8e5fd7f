"""Rows of states of Spark's own operators."""
