"""A checkpoint or a savepoint as a whole: its stores, versions and queries."""
