"""State to another number of partitions: rows and files, and the proof that all have arrived."""
