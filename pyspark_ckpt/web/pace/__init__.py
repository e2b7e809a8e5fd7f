"""Whether a query keeps up with its input: what it says of its batches, or what its logs show."""
