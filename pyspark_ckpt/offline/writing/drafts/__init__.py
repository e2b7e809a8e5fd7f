"""What a list of changes makes of the states of a query, worked out before any row is read."""
