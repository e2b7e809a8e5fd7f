"""Keys as users write them: as Python values and as JSON."""
