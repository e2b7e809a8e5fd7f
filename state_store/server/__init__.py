"""The state server: its process, its protocol, its stores, and its background maintenance."""
