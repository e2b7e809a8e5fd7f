"""Keys and values as the bytes that are stored, and read again after a program has changed its types."""
