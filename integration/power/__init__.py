"""Every state that a loss of power may leave of a checkpoint, from the system calls of real runs."""
