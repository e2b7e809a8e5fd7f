"""A task of a redistribution takes as much memory for a large partition as for any other.

``CKPT_REDISTRIBUTED_ROWS=20000000`` makes the partition as large as that.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import pytest

from integration.sample import sampled
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database import Database, write_table_file
from pyspark_ckpt.state_store.format.key_groups import HASHES, MAX_PARALLELISM
from pyspark_ckpt.state_store.format.keys import encode_hashed_key, encode_ordered_key
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor, StoreMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.assembly import JoinTask, NewStore, publish
from pyspark_ckpt.state_store.redistribution.canonical import ExportTask, ImportTask, SavedRows
from pyspark_ckpt.state_store.redistribution.clipping import Clip, ClipTask, OldPartition
from pyspark_ckpt.state_store.redistribution.merged_states import merge_states
from pyspark_ckpt.state_store.redistribution.regrouping import RegroupTask
from pyspark_ckpt.state_store.redistribution.splitting import RUNS_FOLDER, Split, SplitTask

T = TypeVar("T")

ROWS = int(os.environ.get("CKPT_REDISTRIBUTED_ROWS", "1000000"))
ROWS_A_FILE = 500_000
MAX_BYTES = 512 << 20
MAX_GROWTH_BYTES = 160 << 20
"""A row is 46 bytes, and some 180 where it is an object of Python: all of them would take more."""
LARGE_BYTES = 1000
WORKPLACE = Workplace(parse({}))

LEFT_OUT = {"merge-of-many-ordered", "large-values", "large-values-of-many", "many-partitions"}
"""Of these, another case has the same task with more partitions, or with larger values."""


@dataclass(frozen=True)
class Case:
    """What a task is given: so many ``rows`` in all of its old ``stores``, or ``few_rows``, to compare with.

    ``partitions``: new ones, of which a task of clips makes the first.
    """

    run: Callable[[Case, int, Path], None]
    rows: int
    few_rows: int = 10_000
    stores: int = 1
    partitions: int = 4
    value_bytes: int = 24
    is_keyed: bool = False
    is_ordered: bool = False

    def value(self, number: int) -> bytes:
        """One that is nearly all zeros."""
        return number.to_bytes(self.value_bytes, "little")


NAMES = (
    *("split", "many-partitions", "join", "regroup", "clip", "merge", "merge-of-many-ordered"),
    *("large-values", "large-values-of-many", "large-values-of-many-partitions", "import-of-large-values"),
)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sampled(NAMES, LEFT_OUT))
def test_a_task_takes_little_memory_when_its_partition_is_large(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    few, many = (_peak_bytes(name, rows, tmp_path / str(rows)) for rows in (case.few_rows, case.rows))
    assert many < MAX_BYTES
    if case.value_bytes < LARGE_BYTES:
        assert many - few < MAX_GROWTH_BYTES


def _peak_bytes(name: str, rows: int, folder: Path) -> int:
    """The most memory that a process has had which ran the task of a case on so many rows."""
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.state_store.redistribution.test_redistribution_memory",
        name,
        str(rows),
        str(folder),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak_bytes = int(done.stdout)
    shutil.rmtree(folder)
    return peak_bytes


def _most_bytes() -> int:
    """The most memory that this process has had. What the system says of its resources counts its parent's as well."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _split(case: Case, rows: int, folder: Path) -> None:
    (store,) = _stores(case, rows, folder)
    _split_of(case, store, folder)()


def _split_of(case: Case, store: StoreVersion, folder: Path) -> SplitTask:
    return SplitTask(WORKPLACE, store, str(folder / "new"), case.partitions, {1: 1})


def _join(case: Case, rows: int, folder: Path) -> None:
    """All rows in one partition, as of several old ones."""
    (store,) = _stores(case, rows, folder)
    split: Split = _elsewhere(_split_of(case, store, folder))
    runs = tuple(tuple(run) for run in split.runs.values())
    made = JoinTask(WORKPLACE, _new_store(store.meta, folder / "joined"), str(folder / "new"), runs)()
    assert made.digests["rows"].rows == rows


def _import(case: Case, rows: int, folder: Path) -> None:
    """Of the file of a canonical savepoint."""
    (store,) = _stores(case, rows, folder)
    runs = _elsewhere(SplitTask(WORKPLACE, store, str(folder / "new"), 1, {1: 1}, MAX_PARALLELISM)).runs
    states, target = store.meta.states, str(folder / "saved")
    shutil.copytree(folder / "new" / RUNS_FOLDER, Path(target) / RUNS_FOLDER)
    exported = ExportTask(WORKPLACE, store.identity, states, target, (tuple(runs[0]),))()
    layout = Layout.REMAINDERS.value
    saved = SavedRows(0, "default", layout, store.meta, (exported.file,), exported.digests)
    task = ImportTask(WORKPLACE, target, saved, 0, str(folder / "new"), case.partitions)
    assert task().digests["rows"].rows == rows


def _regroup(case: Case, rows: int, folder: Path) -> None:
    stores = _stores(case, rows, folder)
    new = tuple(_new_store(stores[0].meta, folder / "new", each, case.partitions) for each in range(case.partitions))
    done = RegroupTask(WORKPLACE, stores, ({1: 1},) * len(stores), new, case.partitions)()
    assert sum(made.digests["rows"].rows for made in done.made) == rows


def _clip(case: Case, rows: int, folder: Path) -> None:
    stores = _stores(case, rows, folder)
    numbers = {state.number: state.number for state in stores[0].meta.states}
    parts = tuple(OldPartition(store, _hashes(n, case), numbers) for n, store in enumerate(stores))
    hashes = 0, HASHES // case.partitions
    new = _new_store(stores[0].meta, folder / "new", 0, case.partitions)
    (clipped,) = ClipTask(WORKPLACE, str(folder), (Clip(new, hashes, parts, parts),))()
    assert clipped.made.digests["rows"].rows == rows // case.partitions


CASES = {
    "split": Case(_split, ROWS),
    "many-partitions": Case(_split, ROWS, partitions=500),
    "join": Case(_join, ROWS),
    "regroup": Case(_regroup, ROWS),
    "large-values": Case(_regroup, 500, 5, value_bytes=1_000_000),
    "large-values-of-many": Case(_regroup, 8_000, 8, stores=8, value_bytes=100_000),
    "large-values-of-many-partitions": Case(_split, 500, 5, partitions=500, value_bytes=2_000_000),
    "import-of-large-values": Case(_import, 8_000, 8, value_bytes=100_000),
    "clip": Case(_clip, ROWS, partitions=2, is_keyed=True),
    "merge": Case(_clip, ROWS, stores=2, partitions=1, is_keyed=True),
    "merge-of-many-ordered": Case(
        _clip, 1_000_000, stores=100, partitions=1, value_bytes=200, is_keyed=True, is_ordered=True
    ),
}


def _hashes(number: int, case: Case) -> tuple[int, int]:
    return number * HASHES // case.stores, (number + 1) * HASHES // case.stores


def _new_store(meta: StoreMeta, folder: Path, partition: int = 0, partitions: int = 1) -> NewStore:
    identity = Identity(0, partition, "default")
    return NewStore(identity, str(folder / str(partition)), merge_states([meta], "a store"), 1, "new", partitions)


def _elsewhere(task: Callable[..., T], *arguments: object) -> T:
    """What a task gives, run in another process: what it takes of memory is not counted."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(task, *arguments).result()


def _stores(case: Case, rows: int, folder: Path) -> tuple[StoreVersion, ...]:
    """The old stores, with about as many rows each."""
    return _elsewhere(_made, next(name for name, each in CASES.items() if each is case), rows, folder)


def _made(name: str, rows: int, folder: Path) -> tuple[StoreVersion, ...]:
    case = CASES[name]
    return tuple(_store(case, number, rows, folder) for number in range(case.stores))


def _store(case: Case, number: int, rows: int, folder: Path) -> StoreVersion:
    """One of the old stores. What each has of a keyed state is a range of all hashes, else they take turns."""
    encoder = {"kind": "expiry"} if case.is_ordered else {}
    descriptor = Descriptor(ordered=case.is_ordered, key_encoder=encoder)
    meta, state = EMPTY_META.with_state("rows", descriptor, keyed=case.is_keyed)
    new = _new_store(meta, folder / "old", number, case.stores)
    mine = range(rows * number // case.stores, rows * (number + 1) // case.stores)
    if not case.is_keyed:
        mine = range(number, rows, case.stores)
    with WORKPLACE.folder() as scratch:
        (scratch / "copy").mkdir()
        database = Database(scratch / "copy" / "db", WORKPLACE.tuning())
        database.ingest([new.marker_file(scratch, WORKPLACE.tuning())])
        for first in range(0, len(mine), ROWS_A_FILE):
            some = (
                (_key(case, state, place, each * HASHES // rows), case.value(each))
                for place, each in enumerate(mine[first : first + ROWS_A_FILE], first)
            )
            write_table_file(scratch / "rows.sst", some, WORKPLACE.tuning())
            database.ingest([scratch / "rows.sst"])
        made = publish(WORKPLACE, new, database, scratch)
    return StoreVersion(new.identity, new.url, new.meta(made.digests))


def _key(case: Case, state: int, place: int, row_hash: int) -> bytes:
    user_key = place.to_bytes(16, "big")
    return (
        encode_ordered_key(state, user_key, row_hash)
        if case.is_ordered
        else encode_hashed_key(state, row_hash, user_key)
    )


if __name__ == "__main__":
    CASES[sys.argv[1]].run(CASES[sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3]))
    print(_most_bytes())
