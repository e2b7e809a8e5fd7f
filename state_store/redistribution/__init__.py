"""Move state to another number of partitions, as rows and files, and prove that all of it has arrived."""
