"""Keyed operators from n partitions to m: values, lists, maps, TTL and timers continue as if nothing had happened."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import inputs
from integration.operators.keyed import keyed, play_until
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from integration.operators.test_timers import BothClocks, Echo, ReminderColumns, Reminders
from integration.savepoints.test_rescale import move, sampled
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import combine
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.checkpoints.state_rows import digest_states
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.format.meta import is_keyed
from pyspark_ckpt.state_store.options import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines
    from pyspark_ckpt.state_store.checkpoints.digests import Digest

_EVENTS = inputs.events(seed=61, rows=80)
_REMINDERS = "what string, user int, rows bigint, at timestamp, watermark_ms bigint"


class Habits(ckpt.KeyedProcessor):
    """Every kind of state, with times to live in event time."""

    rows = ckpt.ValueState("rows", "bigint", default=0)
    recent = ckpt.ListState("recent", "bigint", ttl=ckpt.Ttl("40 minutes", clock="event"))
    words = ckpt.MapState("words", "string", "bigint", ttl=ckpt.Ttl("15 minutes", clock="event"))
    most = ckpt.ReducingState("most", "double", "max")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.rows.update(self.rows.value() + len(rows))
        self.recent.add_all([row.id for row in rows])
        for row in rows:
            self.words.put(row.word or "", row.id)
            self.most.add(row.amount)
        yield key.user, self.rows.value(), sorted(self.recent.get()), sorted(self.words.keys()), self.most.get()


CASES = {
    "every kind of state": (Habits(), "user int, n bigint, recent array<bigint>, words array<string>, most double"),
    "timers of event time": (Reminders(), _REMINDERS),
    "timers of both clocks": (BothClocks(), _REMINDERS),
    "timers in columns": (ReminderColumns(), _REMINDERS),
}


NUMBERS = {
    "every kind of state": (2, 7, 3, 1),
    "timers of event time": (1, 4, 16, 3),
    "timers of both clocks": (3, 2, 5, 4),
    "timers in columns": (4, 2, 8, 1),
}


@pytest.mark.parametrize(("name", "numbers"), sampled(NUMBERS))
def test_a_keyed_operator_goes_on_as_if_it_had_never_been_rescaled(
    name: str, numbers: tuple[int, ...], spark: SparkSession, tmp_path: Path
) -> None:
    processor, output = CASES[name]
    case = Case(
        lambda frames: keyed(processor, output)([frames[0].withWatermark("at", "5 minutes")]),
        (_EVENTS,),
        output_mode="update",
    )
    expected = _played(spark, case, tmp_path / "expected", (2, 2, 2, 2))
    assert any(expected.values()), "a case without output proves nothing"
    assert _played(spark, case, tmp_path / "actual", numbers) == expected
    assert _digests(tmp_path / "actual") == _digests(tmp_path / "expected")


def test_timers_of_processing_time_wait_through_rescales_and_fire_once_each(
    spark: SparkSession, tmp_path: Path
) -> None:
    users = Source("user int", (tuple((user,) for user in range(12)), ((100,),)))
    case = Case(keyed(Echo(), "what string, user int, late_ms bigint"), (users,), output_mode="update")
    fired: list[tuple[str, int]] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        fired.extend((row.what, row.user) for row in frame.collect())

    def soon() -> list[int]:
        return sorted(user for what, user in fired if what == "soon")

    write_inputs(case, tmp_path, 0, 1)
    run(OURS.session(spark, **{SHUFFLE_PARTITIONS: "2"}), case, tmp_path, collect)
    assert soon() == []
    move(tmp_path, "checkpoint", "of-3", 3, None)
    move(tmp_path, "of-3", "of-7", 7, "native")
    move(tmp_path, "of-7", "checkpoint", 2, "canonical")
    write_inputs(case, tmp_path, 1, 2)  # after a restart the first batch has rows
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: "2"})
    play_until(lambda: len(soon()) == 13, session, case, tmp_path, collect)
    assert soon() == [*range(12), 100]
    assert len(fired) == len(set(fired)) == 3 * 13, "once each, and none of tomorrow"
    waiting = open_state(str(tmp_path / "checkpoint"), uid="it", state="wall").to_pandas()
    assert set(waiting["namespace"]) == {"tomorrow"}
    assert sorted(key["user"] for key in waiting["key"]) == soon()


def _played(spark: SparkSession, case: Case, folder: Path, numbers: Sequence[int]) -> Mapping[int, Lines]:
    """The rows of every batch of a query that has another number of partitions after each restart."""
    batches: dict[int, Lines] = {}
    for number, (before, partitions) in enumerate(pairwise((0, *numbers))):
        write_inputs(case, folder, number, number + 1)
        if number and before != partitions:
            (folder / "checkpoint").rename(folder / "before")
            move(folder, "before", "checkpoint", partitions, (None, None, "native", "canonical")[number])
        run(OURS.session(spark, **{SHUFFLE_PARTITIONS: str(partitions)}), case, folder, collect_into(batches))
    return batches


def _digests(folder: Path) -> Mapping[str, Digest]:
    checkpoint = Checkpoint(str(folder / "checkpoint"), parse({}))
    (operator,) = list_operators(checkpoint, checkpoint.newest_version)
    return combine(map(_digests_of, operator.stores["default"]))


def _digests_of(store: StoreVersion) -> Mapping[str, Digest]:
    workplace = Workplace(parse({}))
    with workplace.folder() as folder, workplace.restore(store, folder / "store") as restored:
        return digest_states(restored.database, [state for state in restored.meta.states if is_keyed(state)])
