"""Numbers of the runs of a query: they only grow, few of them are kept, and a later one ends the earlier ones."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, RUNS_DELETED_AT_ONCE, RUNS_KEPT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import LocalPlace, MeteredPlace, Traffic
from pyspark_ckpt.state_store.errors import ConflictError, StorageError
from pyspark_ckpt.state_store.format.names import parse_epoch, run_name
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import seal
from tests.conftest import MakeLab
from tests.labs.lab import CallError, expected


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


@pytest.mark.in_turn
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


def test_commits_of_a_run_are_refused_once_a_later_run_has_begun(quick_path: Path) -> None:
    place, store = LocalPlace(quick_path), Identity(0, 3, "default")
    first, second = Epochs(place), Epochs(place)
    place.put(run_name(1), seal(RunObject(RUN_FORMAT, "first", "app-1 on host-1")))
    first.note("first", 1)
    first.require_newest("first", 5, store)
    place.put(run_name(2), seal(RunObject(RUN_FORMAT, "second", "app-2 on host-2")))
    second.note("second", 2)
    second.require_newest("second", 6, store)
    with pytest.raises(ConflictError, match=r"version 6 .* run 1 .* run 2 \(run id second, driver app-2 on host-2\)"):
        first.require_newest("first", 6, store)
    second.require_newest("second", 7, store)


def test_a_later_run_is_found_after_all_numbers_that_followed_at_once_are_gone(quick_path: Path) -> None:
    place, epochs = LocalPlace(quick_path), Epochs(LocalPlace(quick_path))
    place.put(run_name(1), seal(RunObject(RUN_FORMAT, "first")))
    epochs.note("first", 1)
    for number in range(3 * RUNS_KEPT):
        Epochs(place).of(f"later-{number}")
    with pytest.raises(ConflictError, match="driver unknown"):
        epochs.require_newest("first", 1, Identity(0, 0, "default"))


@pytest.mark.parametrize("there", [None, "another"])
def test_commits_of_a_run_are_refused_once_its_number_is_gone_or_is_that_of_another_run(
    there: str | None, quick_path: Path
) -> None:
    place, epochs, store = LocalPlace(quick_path), Epochs(LocalPlace(quick_path)), Identity(0, 3, "default")
    place.put(run_name(2), seal(RunObject(RUN_FORMAT, "first", "app on host")))
    epochs.note("first", 2)
    epochs.require_newest("first", 5, store)
    place.delete(run_name(2))
    if there:
        place.put(run_name(1), seal(RunObject(RUN_FORMAT, "earlier", "app on host")))
        place.put(run_name(2), seal(RunObject(RUN_FORMAT, there, "app on host")))
    assert epochs.has_ended("first")
    with pytest.raises(ConflictError, match=r"version 6 .* run 2 .* is gone, or is that of another run"):
        epochs.require_newest("first", 6, store)


def test_commits_of_a_query_that_was_rescaled_are_refused_on_its_old_checkpoint(quick_path: Path) -> None:
    place, epochs, store = LocalPlace(quick_path), Epochs(LocalPlace(quick_path)), Identity(0, 3, "default")
    place.put(run_name(1), seal(RunObject(RUN_FORMAT, "rescaling", "app on host", "file:/new", 1767225600000)))
    epochs.note("started later", 1)  # the number that refuses it
    with pytest.raises(ConflictError, match=r"version 6 is not committed, because .* was rescaled to file:/new"):
        epochs.require_newest("started later", 6, store)
    with pytest.raises(ConflictError, match=r"Run without a driver is refused, because .* was rescaled to file:/new"):
        epochs.of("without a driver")
    assert numbers(place) == [1]
    place.put(run_name(2), seal(RunObject(RUN_FORMAT, "rescaling", "app on host")))
    assert epochs.of("without a driver") == 3, "the query stays here"


def test_a_run_goes_on_when_its_number_was_written_again(quick_path: Path) -> None:
    place, epochs, store = LocalPlace(quick_path), Epochs(LocalPlace(quick_path)), Identity(0, 3, "default")
    for version in (5, 6):
        place.put(run_name(2), seal(RunObject(RUN_FORMAT, "first", "app on host")))
        epochs.note("first", 2)
        epochs.require_newest("first", version, store)
    assert not epochs.has_ended("first")


def test_a_run_without_a_driver_of_its_own_is_not_refused(quick_path: Path) -> None:
    place = LocalPlace(quick_path)
    epochs = Epochs(place)
    assert [epochs.of("first"), Epochs(place).of("second")] == [1, 2]
    epochs.require_newest("first", 1, Identity(0, 0, "default"))
    epochs.require_newest("", 1, Identity(0, 0, "default"))


def test_the_number_that_a_driver_has_taken_decides_over_winners(quick_path: Path) -> None:
    place = LocalPlace(quick_path)
    place.put(run_name(7), seal(RunObject(RUN_FORMAT, "run", "app on host")))
    noted, found = Epochs(place), Epochs(place)
    noted.note("run", 7)
    assert noted.of("run") == found.of("run") == 7


def test_a_version_is_looked_up_once_in_a_process(quick_path: Path) -> None:
    place = LocalPlace(quick_path)
    place.put(run_name(1), seal(RunObject(RUN_FORMAT, "run", "app on host")))
    traffic = Traffic()
    epochs = Epochs(MeteredPlace(place, traffic))
    epochs.note("run", 1)
    for version in (1, 1, 1, 2, 2, 1):
        epochs.require_newest("run", version, Identity(0, 0, "default"))
    assert traffic.take()["list_requests"] == 2


@pytest.mark.parametrize("fmt", [1, 2])
def test_a_run_that_is_over_commits_and_deletes_nothing(make_lab: MakeLab, fmt: int) -> None:
    lab = make_lab(retentionGracePeriod="0", snapshotEveryVersions="1")
    place = LocalPlace(lab.checkpoint)
    place.put(run_name(1), seal(RunObject(RUN_FORMAT, "old", "app-1 on host")))
    place.put(run_name(2), seal(RunObject(RUN_FORMAT, "new", "app-2 on host")))
    successor = lab.open("new", fmt=fmt, keep=1, epoch=2)
    commit_id: str | None = None
    for version in range(6):
        txn = lab.begin(successor, version, commit_id)
        txn.put("key", str(version))
        answer = txn.commit()
        commit_id = answer["id"] if fmt == 2 else None
        lab.server.call("snapshot", handle=successor, force=True)
    before = sorted(path.name for path in lab.remote.rglob("*"))

    old = lab.open("old", fmt=fmt, keep=1, epoch=1)
    late = lab.begin(old, 6, commit_id)
    late.put("key", "late")
    with pytest.raises(CallError, match=r"ConflictError: .* is over: run 2 .run id new, driver app-2 on host."):
        late.commit()
    assert lab.server.call("cleanup", handle=old) == {"deleted": 0}
    assert sorted(path.name for path in lab.remote.rglob("*")) == before
    assert lab.server.call("cleanup", handle=successor)["deleted"] > 0
