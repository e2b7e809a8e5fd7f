"""How the rows of each kind of state become columns."""
