"""What is kept, what is deleted, and what is re-read to check that it is intact."""
