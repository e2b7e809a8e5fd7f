"""Which attempt of a commit counts, when several have written."""
