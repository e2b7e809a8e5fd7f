"""Whether more partitions would help a query: figures of its batches and of its state, and the rules that judge them.

Neither Spark nor a JVM is needed.
"""
