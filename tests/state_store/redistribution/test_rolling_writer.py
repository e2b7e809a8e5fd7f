"""Rows in key order become table files of bounded size, or an error that names the file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.database import Database, Tuning
from pyspark_ckpt.state_store.errors import InternalError, StorageError
from pyspark_ckpt.state_store.redistribution.rolling_writer import RollingWriter

Rows = list[tuple[bytes, bytes]]

TUNING = Tuning(1 << 20)
EVERYTHING = 1 << 40


def rows_of(count: int, *, value_bytes: int = 24) -> Rows:
    """Rows of random keys."""
    choose = random.Random(1)
    return sorted((b"\0\1" + choose.randbytes(18), choose.randbytes(2).rjust(value_bytes, b"\0")) for _ in range(count))


def written(folder: Path, rows: Rows, *, at_once: int = 1000, max_bytes: int = EVERYTHING) -> list[Path]:
    writer = RollingWriter(folder, "rows", TUNING, max_bytes)
    for first in range(0, len(rows), at_once):
        writer.write(PackedRows.of(rows[first : first + at_once]))
    return writer.finish()


def rows_in(folder: Path, files: Sequence[Path]) -> Rows:
    database = Database(folder / "db", TUNING)
    database.ingest(files)
    found = list(database.rows_in(b"", b"\xff" * 9))
    database.close()
    return found


def test_a_file_ends_when_it_is_large_enough(quick_path: Path) -> None:
    rows = rows_of(40_000, value_bytes=300)
    files = written(quick_path, rows, max_bytes=1 << 18)
    assert [path.name for path in files] == [f"rows-{number}.sst" for number in range(len(files))]
    assert len(files) > 2
    assert rows_in(quick_path, files) == rows


def test_rows_of_many_sizes_and_large_ones_are_in_one_file(quick_path: Path) -> None:
    rows = [(key, value[:1] * (n % 300) * (200 if n % 500 == 0 else 1)) for n, (key, value) in enumerate(rows_of(3000))]
    files = written(quick_path, rows)
    assert len(files) == 1
    assert rows_in(quick_path, files) == rows


def test_no_rows_make_no_file(quick_path: Path) -> None:
    writer = RollingWriter(quick_path, "rows", TUNING, EVERYTHING)
    writer.write(PackedRows(Packed.of([]), Packed.of([])))
    assert writer.finish() == []
    assert list(quick_path.iterdir()) == []


@pytest.mark.parametrize("at", [(5, 4), (4, 4), (99, 100), (100, 99)], ids=str)
def test_rows_out_of_order_are_refused(at: tuple[int, int], quick_path: Path) -> None:
    rows = rows_of(200)
    one, other = at
    rows[one], rows[one + 1] = rows[other + 1], rows[other]
    if one == other:
        rows[one] = rows[one + 1]
    with pytest.raises((InternalError, StorageError), match="order"):
        written(quick_path, rows, at_once=100)


def test_rows_out_of_order_are_refused_also_from_file_to_file(quick_path: Path) -> None:
    rows = rows_of(4000)
    writer = RollingWriter(quick_path, "rows", TUNING, 1)
    writer.write(PackedRows.of(rows[2000:]))
    with pytest.raises(InternalError, match="not in the order of keys"):
        writer.write(PackedRows.of(rows[:2000]))


def test_a_file_that_cannot_be_written_is_named(quick_path: Path) -> None:
    with pytest.raises(StorageError, match=r"write the table file .*rows-0\.sst.*No such file"):
        written(quick_path / "nowhere", rows_of(100))
