"""Keys that are looked up many at once have what RocksDB has under each."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ckpt.state_store.arrays.packed import WIDEST, Packed
from pyspark_ckpt.state_store.database import Database, Reader, TableFile, write_table_file
from pyspark_ckpt.state_store.database.column_names import MIN_KEYS, column_files_in
from pyspark_ckpt.state_store.errors import FormatError, InternalError
from pyspark_ckpt.state_store.sst import column_file, lookup
from pyspark_ckpt.state_store.sst.column_file import OpenColumnFiles, write_column_file
from pyspark_ckpt.state_store.sst.lookup import look_up
from tests.labs.length import TIMES
from tests.state_store.arrays.test_arrays import KEYS, TUNING

ROWS = 4 * MIN_KEYS


@pytest.mark.in_turn
@settings(max_examples=120 * TIMES, deadline=None)
@given(
    pool=st.lists(KEYS.filter(lambda key: len(key) <= WIDEST), min_size=8, max_size=60, unique=True),
    seed=st.integers(0, 9999),
    steps=st.lists(
        st.sampled_from(["puts", "puts", "puts", "puts and deletions", "hide", "compact"]),
        min_size=2,
        max_size=6,
    ),
    share_in_columns=st.sampled_from([0, 0.5, 1]),
    lags=st.sampled_from([0, 0, 1, 3]),
    constants=st.tuples(st.sampled_from([1, 3]), st.sampled_from([2, 1 << 30]), st.sampled_from([1, 64])),
)
def test_keys_have_what_rocksdb_has(
    pool: list[bytes],
    seed: int,
    steps: list[str],
    share_in_columns: float,
    lags: int,
    constants: tuple[int, int, int],
) -> None:
    """The view lags behind by some steps. Some table files have column files beside them, of small parts."""
    choose = random.Random(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        database = Database(folder / "db", TUNING)
        stack.callback(database.close)
        view = Reader(folder / "db", TUNING, folder / "view")
        stack.callback(view.close)
        columns = OpenColumnFiles(folder)
        for number, step in enumerate(steps):
            write(database, step, pool, folder / f"{number}.sst", choose)
            if number < len(steps) - lags:
                view.catch_up()
            for file in database.table_files():
                if choose.random() < share_in_columns and file.name not in column_files_in(folder):
                    bounds = file.first_key, file.last_key
                    with patch.multiple(column_file, FEW_TIES=constants[2], PART_BYTES=choose.choice([1, 100, 9999])):
                        write_column_file(database.folder / file.name, bounds, folder)
        names = ("MIN_KEYS", "ROWS_A_KEY", "FEW_TIES", "BYTES_A_KEY", "MAX_KEY_BYTES")
        for name, value in zip(names, (*constants, 1 << 30, WIDEST), strict=True):
            stack.enter_context(patch.object(lookup, name, value))
        for share in (0.3, 1):
            some = choose.sample(pool, round(len(pool) * share))
            others = [key + bytes(choose.randrange(9)) for key in some]
            for keys in (sorted(some), sorted(some + others)):
                expected = view.get_many(keys) if keys else []
                assert look_up(view, Packed.of(keys)).strings() == expected
                assert look_up(view, Packed.of(keys), columns).strings() == expected


def write(database: Database, step: str, pool: list[bytes], path: Path, choose: random.Random) -> None:
    """Do something to a database whose keys are in a pool."""
    some = sorted(choose.sample(pool, choose.randint(1, len(pool))))
    if step == "compact":
        database.compact()
    elif step == "hide":
        database.hide((some[0], some[-1] + b"\0"))
    else:
        rows = [(key, choose.choice((None, b"")) if "and" in step else choose.randbytes(9)) for key in some]
        write_table_file(path, rows, TUNING)
        database.ingest([path])


class Batches:
    """A database that is fed as batches feed it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = Database(folder / "db", TUNING)
        self.number = 0

    def write(self, numbers: Sequence[int]) -> None:
        """What a batch writes: for each number a row that names the batch."""
        path = self.folder / f"{self.number}.sst"
        rows = [(key_of(n), value_of(self.number)) for n in sorted(numbers)]
        write_table_file(path, rows, TUNING)
        self.database.ingest([path])
        self.number += 1

    def view(self) -> Reader:
        return Reader(self.folder / "db", TUNING, self.folder / f"view-{self.number}")


def key_of(number: int) -> bytes:
    return b"\x40\x00" + number.to_bytes(4, "big") + b"\x01" + number.to_bytes(8, "big")


def value_of(batch: int) -> bytes:
    return b"\x01\x01" + batch.to_bytes(8, "little")


class Asked:
    """Counts the keys that are left to RocksDB."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.folder, self.count = reader, reader.folder, 0

    def table_files(self) -> list[TableFile]:
        return self.reader.table_files()

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self.count += len(keys)
        return self.reader.get_many(keys)


def test_what_batches_have_written_of_the_same_keys_is_read_from_the_newest_file(quick_path: Path) -> None:
    batches = Batches(quick_path)
    choose = random.Random(1)
    for _ in range(5):
        batches.write(choose.sample(range(ROWS), ROWS * 9 // 10))
    view = batches.view()
    asked = Asked(view)
    keys = [key_of(n) for n in range(ROWS)]
    assert look_up(asked, Packed.of(keys)).strings() == view.get_many(keys)  # type: ignore[arg-type]
    assert asked.count < ROWS // 5
    view.close()
    batches.database.close()


def test_files_with_little_of_what_is_asked_for_are_left_to_rocksdb(quick_path: Path) -> None:
    batches = Batches(quick_path)
    batches.write(range(0, 40 * ROWS, 2))
    batches.write(range(0, 40 * ROWS, 40))
    view = batches.view()
    for keys in ([key_of(n) for n in range(0, 40 * ROWS, 39)], [key_of(n) for n in range(0, 40 * ROWS, 20)]):
        asked = Asked(view)
        assert look_up(asked, Packed.of(keys)).strings() == view.get_many(keys)  # type: ignore[arg-type]
        assert asked.count > 0.4 * len(keys)
    view.close()
    batches.database.close()


def test_a_view_whose_files_were_compacted_away_has_what_it_had(quick_path: Path) -> None:
    batches = Batches(quick_path)
    for _ in range(3):
        batches.write(range(ROWS))
    view = batches.view()
    keys = [key_of(n) for n in range(ROWS)]
    before = view.get_many(keys)
    batches.write(range(ROWS))
    batches.database.compact()
    assert not any((view.folder / file.name).exists() for file in view.table_files())
    assert look_up(view, Packed.of(keys)).strings() == before == [value_of(2)] * ROWS
    view.catch_up()
    assert look_up(view, Packed.of(keys)).strings() == [value_of(3)] * ROWS
    view.close()
    batches.database.close()


@pytest.mark.parametrize("large_bytes", [400, 8000])
def test_large_values_beside_small_ones_take_no_memory(quick_path: Path, large_bytes: int) -> None:
    database, count = Database(quick_path / "db", TUNING), (64 << 20) // large_bytes
    choose = random.Random(1)
    rows = ((key_of(n), value_of(n) if n % 2 else choose.randbytes(large_bytes)) for n in range(count))
    write_table_file(quick_path / "0.sst", rows, TUNING)
    database.ingest([quick_path / "0.sst"])
    view = Reader(quick_path / "db", TUNING, quick_path / "view")
    asked, keys = Asked(view), Packed.of([key_of(n) for n in range(1, count, 2)])
    tracemalloc.start()
    try:
        found = look_up(asked, keys)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (asked.count < count // 4) == (large_bytes < lookup.BYTES_A_KEY)
    assert found.strings() == [value_of(n) for n in range(1, count, 2)]
    assert peak < 28 << 20  # of 64 MB, in portions of 2
    view.close()
    database.close()


def test_a_file_that_is_damaged_is_named(quick_path: Path) -> None:
    batches = Batches(quick_path)
    batches.write(range(ROWS))
    view = batches.view()
    (file,) = view.table_files()
    content = bytearray((view.folder / file.name).read_bytes())
    content[len(content) // 3] ^= 1
    (view.folder / file.name).write_bytes(content)
    with pytest.raises(FormatError, match=file.name):
        look_up(view, Packed.of([key_of(n) for n in range(ROWS)]))
    view.close()
    batches.database.close()


def test_files_in_a_wrong_order_are_noticed(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(quick_path)
    batches.write(range(ROWS))
    batches.write(range(ROWS))
    view = batches.view()
    files = view.table_files()
    monkeypatch.setattr(view, "table_files", lambda: files[::-1])
    with pytest.raises(InternalError, match="differs from the database's"):
        look_up(view, Packed.of([key_of(n) for n in range(ROWS)]))
    view.close()
    batches.database.close()
