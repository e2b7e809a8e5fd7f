"""Whether a query keeps up with its input, by the progress it reports, or by its logs."""
