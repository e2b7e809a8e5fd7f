"""Restore versions of a store on this machine."""
