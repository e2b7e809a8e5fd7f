"""Packs: objects that hold commits of several stores of a query, so that they cost one request and one fsync."""
