"""Which attempt of a commit counts if several have written."""
