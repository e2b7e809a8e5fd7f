"""S3 as a place of blobs."""
