"""Streaming queries of a session: their handles in the JVM, their last batch, and their progress."""
