"""What all kinds of places share: their interface, how long they are waited for, and whose clock counts."""
