"""Take, restore and delete savepoints."""
