"""Metrics of streaming queries for Prometheus and OpenTelemetry, with a board and alerts for them."""
