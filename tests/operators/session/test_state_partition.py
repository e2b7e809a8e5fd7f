"""Which partition a call is for: what is refused, and in which words."""

from __future__ import annotations

import shlex

import msgspec
import pytest

from pyspark_ckpt.operators.session.state_partition import check_place, check_planned
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import EMPTY_META
from pyspark_ckpt.state_store.format.spark_groups import find_routes
from pyspark_ckpt.state_store.format.spark_hash import SEED, hash_int
from pyspark_ckpt.state_store.transactions.ticket import Ticket


def ticket(partition: int, partitions: int | None, recorded: int | None = None) -> Ticket:
    meta = msgspec.structs.replace(EMPTY_META, num_partitions=recorded)
    return Ticket(0, partition, "default", 0, "0", "ab" * 16, "", True, "", "lz4", meta, num_partitions=partitions)


def test_a_plan_is_told_the_number_that_the_query_runs_with_when_nothing_is_committed() -> None:
    check_planned(ticket(0, 2), "it", 2)
    with pytest.raises(InvalidInputError) as refused:
        check_planned(ticket(0, 2), "it", 4)
    assert refused.value.message == "Keyed operator 'it' was planned for 4 partitions, but the query runs with 2."
    assert refused.value.hint.startswith("Set spark.sql.shuffle.partitions to 2 before the query is built, or start")


def test_a_plan_is_told_the_number_of_its_checkpoint_when_there_is_one() -> None:
    check_planned(ticket(0, 2, recorded=2), "it", 2)
    with pytest.raises(InvalidInputError) as refused:
        check_planned(ticket(0, 2, recorded=2), "it", 4)
    assert refused.value.message.endswith("runs with 2, the number of its checkpoint.")
    assert "`pyspark-ckpt checkpoint rescale CHECKPOINT NEW_CHECKPOINT -n 4`." in refused.value.hint
    known = msgspec.structs.replace(
        ticket(0, 2, recorded=2), checkpoint="s3://bucket/it's", place_options={"s3Endpoint": "http://host:1"}
    )
    with pytest.raises(InvalidInputError) as refused:
        check_planned(known, "it", 4)
    assert shlex.split(refused.value.hint.split("`")[1]) == [
        *("pyspark-ckpt", "checkpoint", "rescale", "s3://bucket/it's", "NEW_CHECKPOINT", "-n", "4"),
        *("-o", "s3Endpoint=http://host:1"),
    ]


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 200])
def test_a_group_is_refused_in_each_partition_but_that_of_its_key(partitions: int) -> None:
    for partition, route in enumerate(find_routes(partitions)):
        check_place(ticket(partition, partitions), "it", hash_int(route, SEED))
        if partitions > 1:
            other = (partition + 1) % partitions
            with pytest.raises(
                InvalidInputError, match=f"partition {partition} of {partitions} is called in .* {other}[.]"
            ):
                check_place(ticket(other, partitions), "it", hash_int(route, SEED))


def test_a_ticket_without_a_number_of_partitions_is_refused() -> None:
    with pytest.raises(InternalError, match=r"'it'.*does not say how many partitions"):
        check_place(ticket(0, None), "it", 1)
