"""HDFS as a place of blobs."""
