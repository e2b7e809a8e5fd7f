"""Work on running queries and sessions: rescale a query in one call, advise on partitions, give a session the store."""
