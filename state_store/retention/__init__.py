"""What is kept, what is deleted, and what is read again to see that it is still good."""
