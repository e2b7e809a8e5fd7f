"""Run one world from its beginning to its end, in this process."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyspark_ckpt.state_store.blobs.base import retries
from pyspark_ckpt.state_store.blobs.base.clients import Clients
from pyspark_ckpt.state_store.blobs.s3 import place, requests, uploads
from pyspark_ckpt.state_store.database import tuning
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.snapshots import writer
from tests.labs.scratch import IN_MEMORY
from tests.simulation.invariants import Violation
from tests.simulation.object_service import ObjectService
from tests.simulation.plan import Plan
from tests.simulation.replacing import Slots, installed, replaced
from tests.simulation.s3_client import Client
from tests.simulation.scheduler import Killed, Scheduler
from tests.simulation.shared_folder import SharedFolder
from tests.simulation.steps import Steps
from tests.simulation.world import World

ENGINE = "pyspark_ckpt.state_store"
SHARED = (
    "server", "transactions", "local", "snapshots", "retention", "restore", "attempts", "database",
    "blobs.base", "blobs.metered", "log",
)  # fmt: skip
"""Rooms and modules whose objects the threads of a state server share."""
NEVER = 1 << 20
"""So many files make RocksDB compact by itself. Its own threads would do so at any time, so the seed decides when."""


@dataclass(frozen=True)
class Outcome:
    """How a world ended. ``violation``: what was wrong, or empty."""

    plan: Plan
    violation: str
    told: list[str]
    met: Counter[str]


def simulate(plan: Plan) -> Outcome:
    """Run a plan to its end."""
    scheduler = Scheduler(plan.seed)
    folder = make_folder(plan.seed)
    with simulated(scheduler, plan.seed, plan.steps):
        world = World(plan, scheduler, folder)
        violation = ""
        try:
            with _reachable(world.service), _observed(world):
                scheduler.run(world.live)
        except Violation as problem:
            violation = str(problem)
        except (Exception, Killed):  # noqa: BLE001 - whatever it is, it is wrong
            violation = traceback.format_exc()
        finally:
            for executor in world.executors:
                executor.free()
            shutil.rmtree(folder)
        return Outcome(plan, violation, world.told, world.met)


@contextmanager
def _reachable(service: ObjectService | SharedFolder) -> Iterator[None]:
    """Let the engine's requests go to a place."""
    if isinstance(service, SharedFolder):
        with service.mounted():
            yield
    else:
        with replaced(requests, "CLIENTS", Clients(lambda _: Client(service), lambda *_: None)):
            yield


@contextmanager
def _observed(world: World) -> Iterator[None]:
    """Let the world see fail points and published snapshots."""
    publish = writer.SnapshotWriter.publish

    def note(self: Any, *given: Any) -> writer.Published | None:  # noqa: ANN401
        published = publish(self, *given)
        if published is not None:
            world.stored.note_published(self._place.url, published.marker)
        return published

    with (
        replaced(FailPoints, "hit", lambda _, name: world.pass_fail_point(name)),
        replaced(writer.SnapshotWriter, "publish", note),
    ):
        yield


def make_folder(seed: object) -> Path:
    """Make a folder for local disks. Its name belongs to the seed: it decides the order of sets of paths."""
    within = IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir())
    try:
        (folder := within / f"simulation-{seed}").mkdir()
    except FileExistsError:  # another process runs this seed now
        folder = Path(tempfile.mkdtemp(prefix=f"simulation-{seed}-", dir=within))
    return folder


@cache
def _slots() -> Slots:
    """Return where the engine meets the standard library."""
    return Slots(ENGINE)


@cache
def _steps() -> Steps:
    """Return the code in which threads may lose their turn anywhere."""
    return Steps(*(f"{ENGINE}.{room}" for room in SHARED))


@contextmanager
def simulated(scheduler: Scheduler, seed: object, steps: float = 0.0) -> Iterator[None]:
    """Let the engine run on ``scheduler`` for a while. ``steps``: see ``Plan``."""
    divided = _steps().divided(lambda: scheduler.lose_turn(steps)) if steps else nullcontext()
    with installed(_slots(), scheduler, seed), _as_new(), divided:
        yield


@contextmanager
def _as_new() -> Iterator[None]:
    """Let no world see what another one has left in modules."""
    kept = retries._outages, tuning.LEVEL0_COMPACTION_FILES
    retries._outages, tuning.LEVEL0_COMPACTION_FILES = retries._Outages(), NEVER
    try:
        _forget()
        yield
    finally:
        retries._outages, tuning.LEVEL0_COMPACTION_FILES = kept
        _forget()


def _forget() -> None:
    place._exclusive.clear()
    requests._answered.clear()
    uploads.transfers.cache_clear()
    uploads.UNDER_WAY.clear()
