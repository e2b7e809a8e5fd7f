"""The files that Spark and its sources keep in a checkpoint: their names, and how to copy and change them."""
