"""One task of a keyed operator: rows in, timers, rows out, what is staged for the commit."""
