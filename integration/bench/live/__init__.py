"""Latency in real-time mode, from Kafka to Kafka: a load, the operators, and what is measured."""
