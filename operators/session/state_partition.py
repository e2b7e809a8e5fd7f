"""Checks that Spark calls an operator for the right partition, and runs it with the planned number of partitions.

The partition is that of the ticket: the state server has begun a transaction for it. The number of the task does not
tell: after ``coalesce``, one task has several partitions of the state; after ``union``, task numbers are shifted.
"""

from __future__ import annotations

from pyspark_ckpt.state_store.display import write_rescale
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import find_spark_partition
from pyspark_ckpt.state_store.transactions.ticket import Ticket


def check_planned(ticket: Ticket, uid: str, planned: int) -> None:
    """Raise InvalidInputError if rows go to ``planned`` partitions, but the query runs with another number."""
    runs = ticket.num_partitions
    if runs == planned:
        return
    message = f"Keyed operator {uid!r} was planned for {planned} partitions, but the query runs with {runs}"
    way = f"Set spark.sql.shuffle.partitions to {runs} before the query is built, or"
    if ticket.meta.num_partitions is None:
        raise InvalidInputError(
            f"{message}.", hint=f"{way} start with a new checkpoint: this one has no committed batch."
        )
    rescale = write_rescale(ticket.checkpoint, planned, **ticket.place_options)
    raise InvalidInputError(
        f"{message}, the number of its checkpoint.",
        hint=f"{way} make a copy of the checkpoint with {planned} partitions: {rescale}.",
    )


def check_place(ticket: Ticket, uid: str, key_hash: int) -> None:
    """Raise InvalidInputError if the unsigned hash of a group's key does not place it in the ticket's partition."""
    if ticket.num_partitions is None:
        raise InternalError(f"Operator {uid!r}: the ticket of its task does not say how many partitions there are.")
    place = find_spark_partition(key_hash, ticket.num_partitions)
    if place != ticket.partition:
        raise InvalidInputError(
            f"Operator {uid!r}: a group whose key belongs to partition {place} of {ticket.num_partitions} is called in "
            f"partition {ticket.partition}.",
            hint="Leave spark.sql.streaming.statefulOperator.useStrictDistribution on: it places each group by the "
            "hash of its key.",
        )
