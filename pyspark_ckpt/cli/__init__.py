"""The command line."""

NAME = "pyspark-ckpt"
INTERRUPTED = 128 + 2
"""The exit code of a program that Ctrl-C has ended (SIGINT)."""
