"""The strategies that move the rows of old stores into new ones, one module for each, and their common interface."""
