"""The ways a user starts Spark: a script, spark-submit, executors in processes of their own, a standalone cluster."""
