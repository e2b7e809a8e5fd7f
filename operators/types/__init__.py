"""Types of keys, states and output: which values they accept, and how values are converted."""
