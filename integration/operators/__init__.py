"""Every stateful operator of Spark, replayed on Spark's own provider and on ours, and compared row for row."""
