"""Input rows in memory and on disk: every row once, all rows of a hash range together, ranges in order."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ckpt.operators.declarations.operator import HASH
from pyspark_ckpt.operators.task.row_buffer import RANGES, RowBuffer, ranges
from pyspark_ckpt.state_store.errors import InternalError, StorageError

SCHEMA = pa.schema([("text", pa.string()), (HASH, pa.int32())])


def rows_of(hashes: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([f"row {n}" for n in hashes]), pa.array(hashes, pa.int32())], schema=SCHEMA
    )


def unsigned(hash_number: int) -> int:
    return hash_number & 0xFFFFFFFF


def test_few_rows_stay_in_memory_as_they_came(tmp_path: Path) -> None:
    buffer = RowBuffer(SCHEMA, 1 << 20, tmp_path / "rows")
    buffer.add(rows_of([5, -5]))
    buffer.add(rows_of([3]))
    (((table,), end),) = ranges([buffer])
    assert table.column(HASH).to_pylist() == [5, -5, 3]
    assert end is None
    assert list(tmp_path.iterdir()) == []
    buffer.close()


@pytest.mark.parametrize("limit", [1, 10_000])
def test_many_rows_come_back_in_ranges_of_rising_hash(limit: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    hashes = rng.integers(-(2**31), 2**31, 5000).tolist()
    buffer = RowBuffer(SCHEMA, limit, tmp_path / "rows")
    for begin in range(0, len(hashes), 700):
        buffer.add(rows_of(hashes[begin : begin + 700]))
    seen, last_end = [], 0
    for (table,), end in ranges([buffer]):
        found = table.column(HASH).to_pylist()
        assert table.column("text").to_pylist() == [f"row {n}" for n in found]
        assert all(unsigned(n) >= last_end for n in found)
        last_end = 1 << 32 if end is None else int.from_bytes(end, "big")
        assert all(unsigned(n) < last_end for n in found)
        seen += found
    assert sorted(seen) == sorted(hashes)
    assert [n for n in seen if n % 7 == 0 and n > 0] != []
    assert buffer.count == len(hashes)
    assert last_end == 1 << 32
    buffer.close()
    assert not (tmp_path / "rows").exists()


def test_rows_of_one_range_are_given_once_when_others_are_empty(tmp_path: Path) -> None:
    buffer = RowBuffer(SCHEMA, 0, tmp_path / "rows")
    buffer.add(rows_of([1, 2]))
    buffer.add(rows_of([3]))
    (((table,), end),) = ranges([buffer])
    assert table.column(HASH).to_pylist() == [1, 2, 3]
    assert end == ((1 << 32) // RANGES).to_bytes(4, "big")
    buffer.close()


def test_rows_without_a_hash_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=HASH):
        RowBuffer(pa.schema([("text", pa.string()), ("hash", pa.int32())]), 1, tmp_path / "rows")


@pytest.mark.parametrize("harm", ["a bit", "half", "nothing", "longer", "gone"])
def test_rows_that_the_local_disk_has_damaged_are_refused_by_the_name_of_their_file(harm: str, tmp_path: Path) -> None:
    buffer = RowBuffer(SCHEMA, 0, tmp_path / "rows")
    buffer.add(rows_of(list(range(100))))
    buffer.seal()
    (path,) = (tmp_path / "rows").iterdir()
    content = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1 if harm == "a bit" else 0
        end = {"half": len(content) // 2, "nothing": 0}.get(harm, len(content))
        path.write_bytes(content[:end] + (b"\0" if harm == "longer" else b""))
    with pytest.raises(StorageError, match=path.name) as caught:
        buffer.take(int(path.stem))
    assert caught.value.retryable
    buffer.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_of_rows_that_wait_is_found(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    buffer = RowBuffer(SCHEMA, 1, tmp_path / "rows")
    for _ in range(10):
        buffer.add(rows_of([choose.randrange(-(2**31), 2**31) for _ in range(50)]))
    taken = ranges([buffer])
    next(taken)
    path = choose.choice(sorted((tmp_path / "rows").iterdir()))
    content = bytearray(path.read_bytes())
    content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    path.write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"):
        list(taken)
    buffer.close()
    assert list(tmp_path.iterdir()) == []
