"""The wheel beside each Spark: ``python -m integration.wheel``, after ``make wheel``.

For each release a new environment is made, the wheel is installed in it with its extra, and two programs run there,
outside the checkout: the README's, and one that takes a savepoint of a keyed operator and goes on from it with another
number of partitions.
"""
