"""Applications on a real YARN of two node managers, submitted as docs/deploying.md says; all state is in HDFS."""
