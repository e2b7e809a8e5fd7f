"""Numbers of the runs of a query in checkpoint format 1: they only grow, and few of them are kept."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.attempts.winners import RUN_FORMAT, RUNS_DELETED_AT_ONCE, RUNS_KEPT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.format.names import parse_epoch, run_name
from pyspark_ckpt.state_store.json_objects import seal
from tests.conftest import MakeLab
from tests.lab import expected


def numbers(place: LocalPlace) -> list[int]:
    return sorted(epoch for blob in place.list("_ckpt/runs") if (epoch := parse_epoch(blob.name)) is not None)


def test_runs_do_not_pile_up_when_a_query_is_started_again_and_again(quick_path: Path) -> None:
    place = LocalPlace(quick_path)
    taken = [Epochs(place).of(f"run-{number}") for number in range(3 * RUNS_KEPT)]
    assert taken == list(range(1, 3 * RUNS_KEPT + 1))
    assert numbers(place) == taken[-RUNS_KEPT:]


def test_what_an_earlier_release_has_piled_up_goes_a_few_at_a_time(quick_path: Path) -> None:
    place = LocalPlace(quick_path)
    for epoch in range(1, 501):
        place.put(run_name(epoch), seal(RunObject(RUN_FORMAT, f"old-{epoch}")))
    assert Epochs(place).of("old-500") == 500
    assert len(numbers(place)) == 500, "a run that is known changes nothing"
    for number in range(1, 41):
        before = len(numbers(place))
        assert Epochs(place).of(f"new-{number}") == 500 + number
        assert before + 1 - len(numbers(place)) <= RUNS_DELETED_AT_ONCE
    assert len(numbers(place)) == RUNS_KEPT
    assert Epochs(place).of("old-500") == 500, "other processes of a run find its number for long"


def test_many_processes_of_many_runs_agree(quick_path: Path) -> None:
    place, draw = LocalPlace(quick_path), random.Random(3)
    asked = [f"run-{draw.randrange(20)}" for _ in range(300)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda run: (run, Epochs(place).of(run)), asked))
    assert len(set(found)) == len(set(asked))
    assert len({epoch for _, epoch in found}) == len(set(asked))


class Slow(LocalPlace):
    """A place whose first conditional write waits until so many other runs have begun."""

    others = 0

    def put_if_absent(self, name: str, data: bytes) -> bool:
        others, self.others = self.others, 0
        for number in range(others):
            Epochs(LocalPlace(Path(self.url))).of(f"other-{number}")
        return super().put_if_absent(name, data)


@pytest.mark.parametrize("others", [1, RUNS_KEPT - 1, RUNS_KEPT, RUNS_KEPT + 1, 2 * RUNS_KEPT])
def test_a_number_that_was_deleted_is_not_taken_again(others: int, quick_path: Path) -> None:
    Epochs(LocalPlace(quick_path)).of("first")
    place = Slow(quick_path)
    place.others = others
    mine = Epochs(place).of("slow")
    assert mine == others + 2, "it is above all that began before it had its number"
    assert numbers(place)[-1] == mine
    assert Epochs(LocalPlace(quick_path)).of("slow") == mine


class Full(LocalPlace):
    """A place that deletes nothing."""

    def delete(self, name: str) -> None:
        raise StorageError(f"{name} stays")


def test_a_run_begins_though_old_ones_cannot_be_deleted(quick_path: Path) -> None:
    place = Full(quick_path)
    assert [Epochs(place).of(f"run-{number}") for number in range(RUNS_KEPT + 5)][-1] == RUNS_KEPT + 5


def test_a_query_of_format_1_is_right_after_many_starts(make_lab: MakeLab) -> None:
    lab = make_lab()
    for run in range(RUNS_KEPT + 6):
        handle = lab.open(f"run-{run}", 1)
        if run % 35 == 0:
            lab.grow(handle, 1, run // 35)
        else:
            lab.begin(handle, run // 35 + 1).abort()
        lab.server.call("close", handle=handle)
    assert len(numbers(LocalPlace(lab.checkpoint))) == RUNS_KEPT
    lab.restart(lose_local=True)
    for version in (1, 2):
        assert lab.begin(lab.open("last", 1), version).rows == expected(version)
