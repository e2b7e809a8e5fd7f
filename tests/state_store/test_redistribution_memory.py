"""A task of a redistribution takes as much memory for a large partition as for any other.

``CKPT_REDISTRIBUTED_ROWS=20000000`` makes the partition as large as that.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.assembly import JoinTask, NewStore, publish
from pyspark_ckpt.state_store.blobs.copying import StoredFile
from pyspark_ckpt.state_store.clipping import Clip, ClipTask, Part
from pyspark_ckpt.state_store.context import Identity
from pyspark_ckpt.state_store.database import Database, write_table_file
from pyspark_ckpt.state_store.key_groups import HASHES
from pyspark_ckpt.state_store.keys import FIRST_KEYED_COUNTER, hashed_key
from pyspark_ckpt.state_store.meta import EMPTY_META, Descriptor, StoreMeta
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution import merged
from pyspark_ckpt.state_store.regrouping import RegroupTask
from pyspark_ckpt.state_store.splitting import SplitTask
from pyspark_ckpt.state_store.store_version import StoreVersion, Workplace

ROWS = int(os.environ.get("CKPT_REDISTRIBUTED_ROWS", "1000000"))
FEW_ROWS = 10_000
ROWS_A_FILE = 500_000
MOST_BYTES = 512 << 20
MOST_GROWTH_BYTES = 160 << 20
"""A row is 46 bytes, and some 180 where it is an object of Python: all of them would take more. A writer keeps 16 bytes
for each row of its file."""
PARTITIONS = 4
WORKPLACE = Workplace(parse({}))
NUMBERS = {FIRST_KEYED_COUNTER: FIRST_KEYED_COUNTER}


@pytest.mark.parametrize("kind", ["split", "join", "regroup", "clip", "merge"])
def test_a_task_takes_little_memory_when_its_partition_is_large(kind: str, tmp_path: Path) -> None:
    few, many = (_peak_bytes(kind, rows, tmp_path / str(rows)) for rows in (FEW_ROWS, ROWS))
    assert many - few < MOST_GROWTH_BYTES
    assert many < MOST_BYTES


def _peak_bytes(kind: str, rows: int, folder: Path) -> int:
    """The most memory that a process has had which ran tasks of a ``kind`` on a partition of so many rows."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.state_store.test_redistribution_memory", kind, str(rows), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak_bytes = int(done.stdout)
    shutil.rmtree(folder)
    return peak_bytes


def _run(kind: str, rows: int, folder: Path) -> None:
    """Run tasks of one kind, in this process, on stores that another one has made."""
    with ProcessPoolExecutor(1, get_context("spawn")) as maker:
        if kind == "regroup":
            store = maker.submit(_made, folder / "old", rows, 0, HASHES, keyed=False).result()
            new = tuple(_new_store(store.meta, folder / "new", partition) for partition in range(PARTITIONS))
            done = RegroupTask(WORKPLACE, (store,), ({1: 1},), new, PARTITIONS)()
            assert sum(made.digests["rows"].rows for made in done.made) == rows
        elif kind in ("split", "join"):
            store = maker.submit(_made, folder / "old", rows, 0, HASHES, keyed=False).result()
            split = SplitTask(WORKPLACE, store, str(folder / "new"), PARTITIONS, {1: 1})
            made = split() if kind == "split" else maker.submit(split).result()
            if kind == "join":  # all rows in one partition, as of two old ones
                runs = [tuple(run) for run in made.runs.values()]
                assert _joined(store, folder, runs) == rows
        elif kind == "merge":
            half = HASHES // 2
            parts = [
                Part(
                    maker.submit(_made, folder / str(first), rows // 2, first, half, keyed=True).result(),
                    (first, first + half),
                    NUMBERS,
                )
                for first in (0, half)
            ]
            assert _clipped(parts, (0, HASHES), folder) == rows
        else:
            store = maker.submit(_made, folder / "old", rows, 0, HASHES, keyed=True).result()
            assert _clipped([Part(store, (0, HASHES), NUMBERS)], (0, HASHES // 2), folder) == rows // 2
    print(_most_bytes())


def _most_bytes() -> int:
    """The most memory that this process has had. What the system says of its resources counts its parent's as well."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _joined(store: StoreVersion, folder: Path, runs: list[tuple[StoredFile, ...]]) -> int:
    new = _new_store(store.meta, folder / "joined")
    return JoinTask(WORKPLACE, new, str(folder / "new"), tuple(runs))().digests["rows"].rows


def _clipped(parts: list[Part], hashes: tuple[int, int], folder: Path) -> int:
    new = _new_store(parts[0].store.meta, folder / "new")
    (clipped,) = ClipTask(WORKPLACE, (Clip(new, hashes, tuple(parts)),))()
    return clipped.made.digests["rows"].rows


def _new_store(meta: StoreMeta, folder: Path, partition: int = 0) -> NewStore:
    identity = Identity(0, partition, "default")
    return NewStore(identity, str(folder / str(partition)), merged([meta], "a store"), 1, "new", PARTITIONS)


def _made(folder: Path, rows: int, first_hash: int, hashes: int, *, keyed: bool) -> StoreVersion:
    """A store of so many rows, whose hashes are spread over a range, in files of ``ROWS_A_FILE``."""
    meta, number = EMPTY_META.with_state("rows", Descriptor(), keyed=keyed)
    new, identity = _new_store(meta, folder), Identity(0, 0, "default")
    with WORKPLACE.folder() as scratch:
        (scratch / "copy").mkdir()
        database = Database(scratch / "copy" / "db", WORKPLACE.tuning())
        for first in range(0, rows, ROWS_A_FILE):
            numbers = range(first, min(first + ROWS_A_FILE, rows))
            some = (
                (hashed_key(number, first_hash + n * hashes // rows, n.to_bytes(16, "big")), n.to_bytes(24, "little"))
                for n in numbers
            )
            write_table_file(scratch / "rows.sst", some, WORKPLACE.tuning())
            database.ingest([scratch / "rows.sst"])
        made = publish(WORKPLACE, new, database, scratch)
    return StoreVersion(identity, new.url, new.meta(made.digests))


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
