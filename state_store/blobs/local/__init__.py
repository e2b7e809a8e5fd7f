"""A folder of a file system, local or shared, as a place of blobs."""
