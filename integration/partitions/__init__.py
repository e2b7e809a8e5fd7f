"""A cluster whose machines can be cut off from each other: each has a network namespace of its own on this machine."""
