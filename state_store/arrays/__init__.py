"""Works on many keys and values at once, as arrays of bytes in numpy."""
