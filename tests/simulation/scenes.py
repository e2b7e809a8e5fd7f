"""The scenes: which threads of a state server meet where, and what must be true in the end."""

from __future__ import annotations

import errno
import random
import resource
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from pyspark_ckpt.state_store.blobs.base import retries
from pyspark_ckpt.state_store.blobs.base.clients import Clients
from pyspark_ckpt.state_store.blobs.metered import Traffic
from pyspark_ckpt.state_store.errors import ProcessError
from pyspark_ckpt.state_store.local import column_files
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.server.received_secrets import ReceivedSecrets
from pyspark_ckpt.state_store.transactions.metrics import ScrubCounts
from tests.faults.faulty_disk import Trouble, broken
from tests.labs.lab import CallError, Lab, Rows, Server, Txn
from tests.simulation.retention_scenes import snapshots_beside_clean_ups
from tests.simulation.scheduler import STARTED_S
from tests.simulation.stage import Scene, Stage
from tests.simulation.standard_library import wall_clock

BEGINS = 50


def _make_lab(stage: Stage, **options: str) -> Lab:
    """Make a query whose state server lives in the scene's time."""
    ids, process = random.Random(f"ids {stage.draw.random()}"), stage.scheduler.current.process
    lab = Lab(stage.folder, **options)
    lab.server.stores.shut_down()
    lab.server = Server(
        lab.local_dir,
        options,
        clock=wall_clock(stage.scheduler, process),
        make_id=lambda: f"{ids.getrandbits(128):032x}",
    )
    return lab


def attempts_of_one_store(stage: Stage) -> None:
    """Attempts of the same batches, a maintenance, and handles that come and go: nothing is left of them."""
    lab = _make_lab(stage, localCheckpoints="1", snapshotEveryVersions="2")
    chain: list[tuple[str | None, Rows]] = [(None, {})]
    handles = [lab.open()]

    def run_tasks(name: str) -> None:
        handle = lab.open()
        handles.append(handle)
        for _ in range(3):
            version = len(chain) - 1
            commit_id, rows = chain[version]
            txn = _begin(stage, lab, handle, version, commit_id)
            assert txn.rows == rows, (txn.rows, rows)
            txn.put(f"{name}-{version}", name)
            if stage.draw.random() < 0.3:
                txn.abort()
                continue
            answer = txn.commit()
            if len(chain) - 1 == version:  # the first attempt of a batch counts
                chain.append((answer["id"], txn.result()))

    def maintain() -> None:
        for _ in range(3):
            lab.server.call("snapshot", handle=handles[0], force=stage.draw.random() < 0.5)
            lab.server.call("cleanup", handle=handles[0])
            lab.server.call("stats")

    def come_and_go() -> None:
        for _ in range(3):
            lab.server.call("close", handle=lab.open())

    stage.play(*[partial(run_tasks, name) for name in "abc"], maintain, come_and_go)
    (shelf,) = lab.server.stores._shelves.values()
    lab.server.settled()
    assert not shelf.store._transactions
    assert {copy.leases for copy in shelf.store.local.copies} <= {0}
    for handle in handles:
        lab.server.call("close", handle=handle)
    _require_nothing_left(lab)


def _begin(stage: Stage, lab: Lab, handle: int, version: int, commit_id: str | None) -> Txn:
    """Begin as the shim does: again, if a live database has moved on in between, but not for ever."""
    for left in reversed(range(BEGINS)):
        answer = lab.server.call("begin", handle=handle, version=version, id=commit_id)
        (shelf,) = lab.server.stores._shelves.values()
        live = shelf.store.local.copies.live
        assert answer["live"] or live is None or answer["db"] != str(live.db), "it does not know what will move on"
        stage.scheduler.wait(None)
        try:
            return Txn(lab.server, answer)
        except AssertionError as problem:
            if str(problem) != "the marker row is another's" or not answer["live"] or not left:
                raise
            lab.server.call("abort", txn=answer["txn"])
    raise AssertionError("not reached")


def a_store_that_closes_under_a_task(stage: Stage) -> None:
    """A store is closed while a task begins, and perhaps opened again: nothing of it is kept."""
    lab = _make_lab(stage)
    handle = lab.open()

    def run_task() -> None:
        try:
            lab.server.call("abort", txn=lab.server.call("begin", handle=handle, version=0)["txn"])
        except CallError as problem:
            if problem.kind != "LifecycleError":  # it is closed
                raise

    def come_and_go() -> None:
        lab.server.call("close", handle=lab.open())

    stage.play(run_task, lambda: lab.server.call("close", handle=handle), come_and_go)
    _require_nothing_left(lab)


def _require_nothing_left(lab: Lab) -> None:
    """Fail unless a server whose handles are all closed has forgotten their stores, and has no files of them."""
    stores = lab.server.stores
    stores._resources.sweeper.shutdown()  # waits for it
    assert not stores._shelves
    assert not stores._taken
    assert not stores._transactions
    folders = [stores.local_dir / name for name in ("stores", "staging", "tickets")]
    left = [str(path) for folder in folders for path in folder.rglob("*") if path.is_file() or folder.name != "stores"]
    assert not left, left
    stores.shut_down()


def measures_of_two_commits(stage: Stage) -> None:
    """What has happened to local copies between two commits is told by one of them."""
    lab = _make_lab(stage)
    lab.open()
    (shelf,) = lab.server.stores._shelves.values()
    local, upkeep, told = shelf.store.local, shelf.store._writer._upkeep, Counter[str]()

    def damage() -> None:
        for _ in range(3):
            with local.lock:
                local.copies.damaged += 1

    def measure() -> None:
        for _ in range(3):
            told.update({"damaged": upkeep.measure(1)["damaged_copies"]})

    stage.play(damage, measure, measure)
    measure()
    assert told["damaged"] == local.copies.damaged, told
    lab.server.stores.shut_down()


def commits_on_a_full_disk(stage: Stage) -> None:
    """Each local copy that is given up because the disk is full counts."""
    lab = _make_lab(stage)
    handle = lab.open()
    txns = [lab.begin(handle, 0) for _ in range(3)]
    (shelf,) = lab.server.stores._shelves.values()
    with broken(lab.server.stores.local_dir / "stores", Trouble("full", errno.ENOSPC, resource.RLIM_INFINITY)):
        stage.play(*[txn.commit for txn in txns])
        lab.server.settled()
    assert shelf.store.local.copies.full_disk.count == len(txns)
    stage.told.clear()  # the log tells of them, too
    lab.server.stores.shut_down()


def standing_problems(stage: Stage) -> None:
    """A problem that lasts is told once, whoever finds it."""
    log = StoreLog("store", "0/0/default", lambda: stage.scheduler.now_s)
    stage.play(*[lambda: log.warn_of_standing("the disk is full")] * 3)
    assert [record.getMessage() for record in stage.told] == ["the disk is full"]


def column_files_at_the_end(stage: Stage) -> None:
    """The process that writes column files dies while the state server stops."""
    columns = column_files.ColumnFiles(stage.folder, 1 << 20)

    class DyingWorker:
        def run(self, _task: object) -> None:
            raise ProcessError("it has died")

        def kill(self) -> None:
            """Do nothing: it is dead."""

        close = kill

    columns._worker = DyingWorker()  # type: ignore[assignment]

    def write() -> None:
        task = column_files.WriteTask(stage.folder, (b"", b""), stage.folder, 0)
        with suppress(RuntimeError):  # it has been stopped
            columns._thread.submit(columns._run, task)

    stage.play(write, columns.close)


def outages(stage: Stage) -> None:
    """The log tells once that a place does not answer, and once that it does again, whoever notices it."""
    known, problem = retries._Outages(), OSError("lost")

    def ask(failures: int, *, gives_up: bool = False) -> None:
        for number in range(failures + 1):
            began = STARTED_S + stage.scheduler.now_s
            stage.scheduler.sleep(stage.draw.random())
            if number < failures:
                known.note_failure("place", began, 60, problem, is_first=number == 0)
            elif not gives_up:
                known.note_answer("place", began)
        if failures:
            known.note_end("place")

    ask(1, gives_up=True)
    stage.told.clear()
    stage.play(*[partial(ask, stage.draw.randint(0, 2)) for _ in range(3)])
    told = Counter("again" if "answers again" in record.getMessage() else "away" for record in stage.told)
    assert told["again"] == told["away"], told
    assert not known._waiting
    assert not known._since


def refused_credentials(stage: Stage) -> None:
    """Requests that are refused at one time look for credentials once, and share one client."""
    made: list[str] = []
    looked: list[str] = []

    def make(settings: str) -> str:
        made.append(settings)
        return "old"

    def make_other(_settings: str, refused: str, _is_new: bool) -> str | None:  # noqa: FBT001
        looked.append(refused)
        return "new" if refused == "old" else None

    clients: Any = Clients(make, make_other)

    def ask() -> None:
        shared = clients.get("settings")
        used = shared.get()
        if used == "old":
            assert shared.renew(used, stage.scheduler.now_s + 5000.0)
        assert shared.get() == "new"
        shared.note_success("place")

    stage.play(ask, ask, ask)
    assert (made, looked) == (["settings"], ["old"])


def counts(stage: Stage) -> None:
    """Counts that are taken while others count are complete."""
    traffic, scrubs, taken = Traffic(), ScrubCounts(), Counter[str]()

    def count() -> None:
        for _ in range(3):
            traffic.count(read_requests=1)
            scrubs.count(scrubbed=1)

    def take() -> None:
        for _ in range(3):
            taken.update({**traffic.take(), **{name: scrubs.take()[name] for name in ("scrubbed_objects",)}})

    stage.play(count, count, take)
    take()
    assert (taken["read_requests"], taken["scrubbed_objects"]) == (6, 6), taken


def secrets_that_arrive(stage: Stage) -> None:
    """Whoever waits for secrets gets them, also while others replace them."""
    secrets = ReceivedSecrets()
    found: list[Mapping[str, str]] = []
    stage.play(
        lambda: found.append(secrets.await_secrets(2)),
        lambda: secrets.keep(b'{"number": 1, "secrets": {"key": "1"}}'),
        lambda: secrets.keep(b'{"number": 2, "secrets": {"key": "2"}}'),
    )
    assert found == [{"key": "2"}]


SCENES: Mapping[str, Scene] = {
    scene.__name__.replace("_", " "): scene
    for scene in (
        attempts_of_one_store,
        a_store_that_closes_under_a_task,
        measures_of_two_commits,
        commits_on_a_full_disk,
        standing_problems,
        column_files_at_the_end,
        outages,
        refused_credentials,
        counts,
        secrets_that_arrive,
        snapshots_beside_clean_ups,
    )
}
