"""Functions of changes: the rows that they get, and which keys become one."""
