"""A driver is lost, another one takes its place, and the first one wakes up: see docs/high-availability.md."""
