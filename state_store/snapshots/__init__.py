"""Full and incremental snapshots: when one is made, and how."""
