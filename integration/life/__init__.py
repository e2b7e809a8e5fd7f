"""The random life of a keyed program: what a seed decides runs on real Spark, and must be what plain dicts say.

``python -m integration.life --seeds 50`` plays fifty of them; ``--seed 7 --seeds 1`` plays the seventh again.
"""
