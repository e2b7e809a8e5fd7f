"""Many keys and values at once, as arrays of bytes, by numpy."""
