"""Savepoints and rescaling on real Spark: the moved query gives what one gives that was never moved."""
