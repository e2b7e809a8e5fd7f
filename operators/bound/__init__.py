"""States as a processor's code calls them, bound to the rows of one task."""
