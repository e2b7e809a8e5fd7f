"""What is done to queries and sessions while they run: rescale a query in one call, give a session the store."""
