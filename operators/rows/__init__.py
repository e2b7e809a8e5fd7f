"""The rows of one state in one task: what is stored, what the batch has written, and when it expires."""
