"""Moves the state of a query from one of Spark's own providers into a checkpoint of this store."""
