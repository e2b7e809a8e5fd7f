"""Keyed operators for PySpark streams: state descriptors, state handles and timers.

Nothing is here yet. This release keeps the state of Spark's own stateful operators; keyed operators follow.
"""
