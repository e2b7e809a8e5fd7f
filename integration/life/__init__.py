"""The random life of a keyed program on real Spark: what a seed decides (``tests.life``) must be what plain dicts say.

``python -m integration.life --seeds 50`` plays fifty of them; ``--seed 7 --seeds 1`` plays the seventh again.
"""
