"""How checkpoints, operators and states are described to people and to programs: one form, wherever it is shown."""
