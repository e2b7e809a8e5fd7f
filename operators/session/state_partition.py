"""Which partition of the state a call of Spark's is for, and whether it is the one that the query was planned for.

That is the partition of the ticket, whose transaction the state server has begun for it. The task's own number says
nothing: behind ``coalesce`` a task has several partitions of the state, behind ``union`` a task's number is another.
"""

from __future__ import annotations

from pyspark_ckpt.state_store.errors import InternalError, LifecycleError
from pyspark_ckpt.state_store.format.key_groups import remainder_of
from pyspark_ckpt.state_store.transactions.ticket import Ticket


def check_planned(ticket: Ticket, uid: str, planned: int) -> None:
    """Refuse an operator whose rows go to ``planned`` partitions in a query that runs with another number."""
    runs = ticket.num_partitions
    if runs == planned:
        return
    message = f"Keyed operator {uid!r} was planned for {planned} partitions, and the query runs with {runs}"
    way = f"Set spark.sql.shuffle.partitions to {runs} before the query is built, or"
    if ticket.meta.num_partitions is None:
        raise LifecycleError(
            f"{message}.", hint=f"{way} begin with a new checkpoint: no batch of this one is committed."
        )
    raise LifecycleError(
        f"{message}: that of its checkpoint.",
        hint=f"{way} make a checkpoint for {planned} of it: pyspark-ckpt rescale CHECKPOINT NEW -n {planned}.",
    )


def check_place(ticket: Ticket, uid: str, key_hash: int) -> None:
    """Refuse a group of Spark's whose key's hash, unsigned, does not place it in the ticket's partition."""
    if ticket.num_partitions is None:
        raise InternalError(f"Operator {uid!r}: the ticket of its task does not say how many partitions there are.")
    place = remainder_of(key_hash, ticket.num_partitions)
    if place != ticket.partition:
        raise LifecycleError(
            f"Operator {uid!r}: a group whose key belongs to partition {place} of {ticket.num_partitions} is called in "
            f"partition {ticket.partition}.",
            hint="Leave spark.sql.streaming.statefulOperator.useStrictDistribution on: it places state by the hash of "
            "its key.",
        )
