"""Checks of the sources that no linter has: run by ``make lint``."""
