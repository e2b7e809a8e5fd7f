"""Full and incremental snapshots: when they are due, and how they are made."""
