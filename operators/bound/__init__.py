"""States that a processor's code calls, bound to the rows of one task."""
