"""Random chains of keyed operators and Spark's own, killed and rescaled, beside plain Python.

``python -m integration.chains --seed 1 --seeds 200`` plays many.
"""
