"""Checkpoints in S3 by Hadoop's own connector."""
