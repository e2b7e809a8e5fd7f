"""Streaming queries of a session as this package sees them: their handles in the JVM, their last batch, progress."""
