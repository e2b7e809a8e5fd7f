"""Savepoints and rescaling on real Spark: the query that goes on gives what one gives that was never moved."""
