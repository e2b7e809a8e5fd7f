"""Keys and values as stored bytes, which can still be read after a program has changed its types."""
