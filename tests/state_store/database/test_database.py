"""Checkpoints by hard links while RocksDB compacts, and databases that share files without harm."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.database import Cursor, Database, Reader, Tuning, drop_unreferenced, write_table_file
from pyspark_ckpt.state_store.database import tuning as tuning_module
from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker, encode_hashed_key
from tests.labs.lab import TUNING

SECONDS = 4


def rows_of(db: Database) -> dict[bytes, bytes]:
    rows = dict(db.rows())
    rows.pop(MARKER_KEY)
    return rows


def test_a_checkpoint_is_whole_while_compaction_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_module, "LEVEL0_COMPACTION_FILES", 2)
    tuning = Tuning(1 << 20)
    db, expected, version = Database(tmp_path / "db", tuning), dict[bytes, bytes](), 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        version += 1
        rows = {
            encode_hashed_key(1, k * 2654435761 % (1 << 32), b"%d" % k): b"%d" % version
            for k in range(version % 7, 9000, 7)
        }
        marker = Marker(version, "a")
        write_table_file(tmp_path / "x.sst", [(MARKER_KEY, marker.encode()), *sorted(rows.items())], tuning)
        db.ingest([tmp_path / "x.sst"])
        expected.update(rows)
        folder = tmp_path / f"checkpoint-{version}"
        db.checkpoint(folder)
        frozen = Database(folder, tuning, read_only=True)
        assert frozen.marker() == marker
        assert rows_of(frozen) == expected
        frozen.close()
        if version % 4 == 0:  # a writer on the checkpoint must not reach the files it shares
            drop_unreferenced(folder, tuning)
            other = Database(folder, tuning)
            write_table_file(tmp_path / "y.sst", [(MARKER_KEY, Marker(0, "z").encode())], tuning)
            other.ingest([tmp_path / "y.sst"])
            other.compact()
            other.close()
            assert rows_of(db) == expected
            assert db.marker() == marker
        shutil.rmtree(folder)
    db.close()


def test_rows_are_written_anew_when_half_as_many_have_come_and_not_before(tmp_path: Path) -> None:
    numbers = random.Random(2)
    with closing(Database(tmp_path / "db", TUNING)) as database:
        add(database, range(20_000), tmp_path / "x.sst")
        (first,) = (table.name for table in database.table_files())
        written, share = 0, 0.0
        while first in {table.name for table in database.table_files()}:
            add(database, numbers.sample(range(20_000), 400), tmp_path / "x.sst")
            written += 400
            share = written / 20_000
            time.sleep(0.02)
            assert share < 2
        assert share > 0.3  # runs of newer rows hide each other


def add(database: Database, numbers: Iterable[int], path: Path) -> None:
    rows = {encode_hashed_key(1, k * 2654435761 % (1 << 32), b"%d" % k): b"%d" % time.monotonic_ns() for k in numbers}
    write_table_file(path, sorted(rows.items()), TUNING)
    database.ingest([path])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have priorities of their own on Linux alone")
def test_compaction_gives_way_to_batches(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPACTING, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert list(map(int, done.stdout.split())) == [usual, max(usual, 10)]  # offline work is nobody's background


COMPACTING = """
import os, sys
from pathlib import Path
from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file

def compact(name, tuning):
    database, path = Database(Path(sys.argv[1], name), tuning), Path(sys.argv[1], "one.sst")
    for ends in (False, True, False):
        write_table_file(path, [(b"12345678", b"")], tuning)
        database.ingest([path])
        if ends:
            database.compact()
    threads = [int(path.name) for path in Path("/proc/self/task").iterdir() if "db:low" in (path / "comm").read_text()]
    print(*{os.getpriority(os.PRIO_PROCESS, thread) for thread in threads})
    database.close()

compact("offline", Tuning(0, compacts=False))
compact("live", Tuning(0))
"""


def test_table_files_need_rows_in_order(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        write_table_file(tmp_path / "x.sst", [(b"b", b""), (b"a", b"")], TUNING)


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    db = Database(tmp_path / "db", TUNING)
    with pytest.raises(StorageError):
        Database(tmp_path / "db", TUNING)
    db.close()
    db.close()


def test_a_database_that_is_opened_again_has_filters_and_the_cache(tmp_path: Path) -> None:
    rows = [(encode_hashed_key(1, k << 16, b"%d" % k), b"%d" % k) for k in range(20_000)]
    Database(tmp_path / "db", TUNING).close()
    tuning = Tuning(64 << 20)
    database = Database(tmp_path / "db", tuning)
    for part in (rows[::2], rows[1::2]):
        write_table_file(tmp_path / "x.sst", part, tuning)
        database.ingest([tmp_path / "x.sst"])
    database.compact()
    assert all(b"fullfilter." in path.read_bytes() for path in (tmp_path / "db").glob("*.sst"))
    reader = Reader(tmp_path / "db", tuning, tmp_path / "scratch")
    before = tuning.get_used_bytes()
    assert reader.get_many([key for key, _ in rows]) == [value for _, value in rows]
    assert tuning.get_used_bytes() - before > 100_000
    reader.close()
    database.close()


def _read_on(cursor: Cursor) -> Iterator[tuple[bytes, bytes]]:
    while cursor.key is not None:
        yield cursor.key, cursor.value()
        cursor.next()


def _damaged(folder: Path) -> tuple[Path, list[tuple[bytes, bytes]]]:
    """A database of one table file with a flipped bit in the middle, and the rows that it should have."""
    rows = [(encode_hashed_key(1, k << 16, b"%d" % k), b"%d" % k) for k in range(20_000)]
    database = Database(folder / "db", TUNING)
    write_table_file(folder / "x.sst", rows, TUNING)
    database.ingest([folder / "x.sst"])
    database.close()
    (table,) = (folder / "db").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 1
    table.write_bytes(content)
    return folder / "db", rows


def test_a_damaged_block_is_no_end_of_the_rows(tmp_path: Path) -> None:
    folder, rows = _damaged(tmp_path)
    with closing(Database(folder, Tuning(1 << 20), read_only=True)) as database:
        for read in (database.rows(), database.rows_in(b"", b"\xff")):
            with pytest.raises(FormatError, match="Corruption"):
                deque(read, maxlen=0)
    with closing(Reader(folder, Tuning(1 << 20), None)) as reader:
        cursor, seen = reader.cursor(), list[tuple[bytes, bytes]]()
        cursor.seek(b"")
        with pytest.raises(FormatError, match=rf"{folder}.*Corruption"):
            seen.extend(_read_on(cursor))
        assert 0 < len(seen) < len(rows)
        assert seen == rows[: len(seen)]
        with pytest.raises(FormatError, match="Corruption"):
            cursor.seek(rows[len(seen)][0])
        cursor.seek(rows[-1][0])
        assert list(_read_on(cursor)) == rows[-1:]
        with pytest.raises(FormatError, match="Corruption"):
            deque(reader.portions(b"", b"\xff"), maxlen=0)
        whole = [row for some in reader.portions(rows[-3000][0], rows[-1][0]) for row in some]
        assert whole == rows[-3000:-1]
