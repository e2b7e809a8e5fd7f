"""Composes savepoints: operators and sources of several queries become those of one."""
