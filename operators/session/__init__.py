"""The state of one partition during one task: where rows are read from and written to."""
