"""Types of keys, states and output: which values they take, and the bytes they are stored as."""
