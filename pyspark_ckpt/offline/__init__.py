"""Work on state without Spark and without a JVM: read it, write it, move it between providers."""
