"""What all kinds of places have in common: their interface, how long they wait, and whose clock counts."""
