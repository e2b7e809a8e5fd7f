"""The common ground of all kinds of places: their interface, how long to wait for them, and whose clock counts."""
