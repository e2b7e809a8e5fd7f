"""The files that Spark and its sources keep in a checkpoint: which there are, how they are copied and changed."""
