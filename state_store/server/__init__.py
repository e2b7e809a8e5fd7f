"""The state server: a process, its calls, its stores, and its work between batches."""
