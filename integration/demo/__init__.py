"""A year of real flights as a stream that is killed in the middle, compared with a batch computation."""
