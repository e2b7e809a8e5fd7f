"""Find the damage in a checkpoint and the newest batch after which its query can continue, and go back to it."""
