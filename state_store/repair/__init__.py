"""What is broken in a checkpoint, the newest batch after which its query can continue, and the way back to it."""
