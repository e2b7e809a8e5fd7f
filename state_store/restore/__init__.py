"""A version of a store made readable on this machine."""
