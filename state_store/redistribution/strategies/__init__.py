"""The ways in which the rows of old stores get into new ones: one module for each, and what they have in common."""
