"""Writes the state of a query into the files of Spark's own state store providers."""
