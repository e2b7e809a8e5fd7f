"""Fixtures of the tests with Kafka."""

from integration.kafka.service import kafka

__all__ = ["kafka"]
