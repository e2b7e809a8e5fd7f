"""What runs against real parts: Spark sessions, clusters, kills, benchmarks."""
