"""Ours against Spark's own providers, paired: one process a provider, one batch each in turn, everything else asleep.

``python -m integration.bench [--quick] [--only NAME ...] [--rounds N]``
"""
