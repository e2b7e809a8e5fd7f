"""Queries whose state is in Google Cloud Storage or Azure."""
