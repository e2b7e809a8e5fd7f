"""Queries that read a real Kafka."""
