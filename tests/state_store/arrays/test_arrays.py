"""Rows that are read many at once are those that RocksDB itself reads, one by one."""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import rocksdict
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pyspark_ckpt.state_store.arrays import order, packed, xxh3
from pyspark_ckpt.state_store.arrays.order import join_runs
from pyspark_ckpt.state_store.arrays.packed import Packed, concatenate, side_by_side
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.arrays.sums import sum_row_hashes
from pyspark_ckpt.state_store.database import Database, TableFile, Tuning, write_table_file
from pyspark_ckpt.state_store.database.tuning import LEVEL0_COMPACTION_FILES
from pyspark_ckpt.state_store.errors import FormatError, InternalError, StorageError
from pyspark_ckpt.state_store.sst.scan import Sweep, scan_rows
from tests.labs.length import TIMES

EVERYTHING = b"", b"\xff" * 600
TUNING = Tuning(1 << 20)
KEYS = st.one_of(
    st.binary(min_size=1, max_size=4),
    st.builds(bytes.__add__, st.sampled_from([b"a" * 7, b"a" * 8, b"a" * 200, b"a" * 520]), st.binary(max_size=12)),
)
VALUES = st.one_of(st.binary(max_size=20), st.builds(bytes.__mul__, st.binary(min_size=1, max_size=3), st.just(9000)))


READERS = st.sampled_from([1, 10_000, 1_000_000])
"""With many, portions are halved as long as they have two blocks."""


def read(database: Database, begin: bytes, end: bytes, readers: int = 1) -> list[tuple[bytes, bytes]]:
    return [row for rows in scan_rows(database, begin, end, readers=readers) for row in rows.rows()]


class Databases(RuleBasedStateMachine):
    """A database with files at several levels, deletions, and ranges that are hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.folder = Path(self.stack.enter_context(TemporaryDirectory()))
        self.number = 0

    @initialize(compression=st.sampled_from(["lz4", "zstd", "none"]))
    def open(self, compression: str) -> None:
        self.tuning = TUNING.using(compression)
        self.database = Database(self.folder / "db", self.tuning)

    @rule(rows=st.dictionaries(KEYS, st.one_of(st.none(), VALUES), min_size=1, max_size=40))
    def ingest(self, rows: dict[bytes, bytes | None]) -> None:
        path = self.folder / f"{self.number}.sst"
        self.number += 1
        write_table_file(path, sorted(rows.items()), self.tuning)
        self.database.ingest([path])

    @rule(seed=st.integers(0, 9999), value_bytes=st.sampled_from([0, 9, 300]), size=st.sampled_from([64, 3000]))
    def ingest_alike(self, seed: int, value_bytes: int, size: int) -> None:
        """Rows of one size, among the others."""
        choose = random.Random(seed)
        keys = sorted({b"a" * 7 + choose.randbytes(choose.choice((2, 3))).rjust(3, b"b") for _ in range(size)})
        path = self.folder / f"{self.number}.sst"
        self.number += 1
        write_table_file(path, [(key, choose.randbytes(value_bytes)) for key in keys], self.tuning)
        self.database.ingest([path])

    @rule(ranges=st.lists(st.tuples(KEYS, KEYS), max_size=3))
    def hide(self, ranges: list[tuple[bytes, bytes]]) -> None:
        self.database.hide(*(each for each in ranges if each[0] < each[1]))

    @rule()
    def compact(self) -> None:
        self.database.compact()

    @rule(begin=KEYS, end=KEYS)
    def compact_range(self, begin: bytes, end: bytes) -> None:
        if begin < end:
            self.database.drop(begin, end)

    @rule(begin=KEYS, end=KEYS, readers=READERS)
    def compare_range(self, begin: bytes, end: bytes, readers: int) -> None:
        assert read(self.database, begin, end, readers) == list(self.database.rows_in(begin, max(begin, end)))

    @rule(readers=READERS)
    def compare(self, readers: int) -> None:
        assert read(self.database, *EVERYTHING, readers) == list(self.database.rows_in(*EVERYTHING))

    def teardown(self) -> None:
        self.database.close()
        self.stack.close()


TestDatabases = Databases.TestCase
TestDatabases.settings = settings(max_examples=30 * TIMES, stateful_step_count=20, deadline=None)


def filled(folder: Path, rows: int, *, seed: int = 0) -> Database:
    """Many rows of a fixed layout, in a large file and two small ones that change and delete some."""
    choose = random.Random(seed)
    database = Database(folder / "db", TUNING)
    state = {n.to_bytes(4, "big") + bytes(8): n.to_bytes(24, "little") for n in choose.sample(range(1 << 32), rows)}
    changes = [dict.fromkeys(choose.sample(sorted(state), rows // 50), value) for value in (b"changed", None)]
    for number, each in enumerate([state, *changes]):
        write_table_file(folder / f"{number}.sst", sorted(each.items()), TUNING)
        database.ingest([folder / f"{number}.sst"])
    return database


@pytest.mark.in_turn
def test_rows_come_in_portions_of_bounded_size(quick_path: Path) -> None:
    database = filled(quick_path, 200_000)
    portions = list(scan_rows(database, *EVERYTHING))
    assert len(portions) > 2
    assert max(map(len, portions)) < 100_000
    assert [row for rows in portions for row in rows.rows()] == list(database.rows_in(*EVERYTHING))
    database.close()


class SmallFiles(Tuning):
    """So that a compaction writes several files, and a mark reaches beyond the one that has it."""

    def options(self) -> rocksdict.Options:
        options = super().options()
        options.set_target_file_size_base(64 << 10)
        options.set_max_bytes_for_level_base(2 << 20)
        return options


def test_a_mark_hides_nothing_beyond_its_file(quick_path: Path) -> None:
    """A clipped state in key order, and later deltas, which are compacted with the range deletion."""
    choose = random.Random(1)
    tuning = SmallFiles(1 << 20, "none")
    database = Database(quick_path / "db", tuning)

    def ingest(state: int, numbers: range) -> None:
        rows = [(state.to_bytes(2, "big") + n.to_bytes(8, "big"), choose.randbytes(100)) for n in numbers]
        write_table_file(quick_path / "rows.sst", rows, tuning)
        database.ingest([quick_path / "rows.sst"])

    ingest(1, range(60_000))
    ingest(2, range(0, 4000, 10))
    database.compact()
    database.hide((b"\0\2", b"\0\3"))
    for first in range(10):
        ingest(2, range(first, 4000, 10))
    until = time.monotonic() + 30
    while sum(table.level == 0 for table in database.table_files()) >= LEVEL0_COMPACTION_FILES:
        assert time.monotonic() < until
        time.sleep(0.05)
    rows = list(database.rows_in(b"\0\2", b"\0\3"))
    assert len(rows) == 4000
    assert read(database, b"\0\2", b"\0\3") == rows
    database.close()


def test_files_that_are_compacted_meanwhile_are_read_to_their_end(quick_path: Path) -> None:
    database = filled(quick_path, 200_000)
    before = {table.name for table in database.table_files()}
    portions = scan_rows(database, *EVERYTHING)
    found = list(next(portions).rows())
    database.compact()
    assert before.isdisjoint(path.name for path in database.folder.iterdir())
    found += [row for rows in portions for row in rows.rows()]
    assert found == list(database.rows_in(*EVERYTHING))
    database.close()


@pytest.mark.in_turn
def test_files_of_one_large_row_are_not_read_together(quick_path: Path) -> None:
    database = Database(quick_path / "db", TUNING)
    for number in range(40):
        write_table_file(quick_path / "row.sst", [(bytes([number]), number.to_bytes(4_000_000, "little"))], TUNING)
        database.ingest([quick_path / "row.sst"])
    assert len(database.table_files()) == 40
    portions = [[value for _, value in rows.rows()] for rows in scan_rows(database, *EVERYTHING)]
    assert sum(map(len, portions)) == 40
    assert max(map(len, portions)) <= 4
    database.close()


def test_a_table_file_that_is_missing_is_named(quick_path: Path) -> None:
    database = filled(quick_path, 1_000)
    gone = max(database.table_files(), key=lambda table: table.rows).name
    (database.folder / gone).unlink()
    with pytest.raises(StorageError, match=rf"is missing: .*{gone}"):
        read(database, *EVERYTHING)
    database.close()


def swept(folder: Path, files: Sequence[TableFile], get: Callable[[bytes], bytes | None]) -> list[tuple[bytes, bytes]]:
    with closing(Sweep(folder, files)) as sweep:
        return [
            row for portion in sweep.portions(*EVERYTHING) for rows in portion.rows(get, 1 << 20) for row in rows.rows()
        ]


def test_tables_in_a_wrong_order_are_noticed(quick_path: Path) -> None:
    database = filled(quick_path, 1_000)
    files = database.table_files()
    assert len(swept(database.folder, files, database.get)) == 1_000 - 20
    with pytest.raises(InternalError, match="differs from the database's"):
        swept(database.folder, files[::-1], database.get)
    database.close()


def test_rows_that_the_database_does_not_have_are_noticed(quick_path: Path) -> None:
    database = filled(quick_path, 1_000)
    database.compact()
    (file,) = database.table_files()
    with pytest.raises(InternalError, match="differs from the database's"):
        swept(database.folder, [file], lambda _key: None)
    with pytest.raises(InternalError, match="differs from the database's"):
        swept(database.folder, [file], lambda _key: b"another")
    database.close()


@pytest.mark.parametrize("are_alike", [False, True])
def test_damage_anywhere_in_a_table_is_found_or_without_effect(*, are_alike: bool, quick_path: Path) -> None:
    rows = [(n.to_bytes(8, "big"), bytes([n % 7]) * (150 if are_alike else n % 300)) for n in range(400)]
    path = quick_path / "table.sst"
    write_table_file(path, rows, TUNING)
    whole = path.read_bytes()
    file = TableFile(path.name, len(whole), rows[0][0], rows[-1][0], len(rows), 0)

    def found(content: bytes) -> list[tuple[bytes, bytes]]:
        path.write_bytes(content)
        return swept(quick_path, [file], dict(rows).get)

    assert found(whole) == rows
    choose = random.Random(1)
    noticed = 0
    for at in (*choose.sample(range(len(whole)), 300), *range(len(whole) - 60, len(whole))):
        damaged = bytearray(whole)
        damaged[at] ^= choose.randrange(1, 256)
        try:
            assert found(bytes(damaged)) == rows
        except FormatError as problem:
            assert str(path) in str(problem) or "it is damaged" in str(problem)  # noqa: PT017 - either is right
            noticed += 1
    assert noticed > 200
    for length in (0, 10, 53, len(whole) // 2, len(whole) - 1):
        with pytest.raises(FormatError, match="is damaged"):
            found(whole[:length])


def test_hashes_are_those_of_xxhash() -> None:
    choose = random.Random(2)
    for length in xxh3.LENGTHS:
        rows = [choose.randbytes(length) for _ in range(5)]
        seed = choose.choice((0, 1, 22, 1 << 20))
        found = xxh3.hash_rows(Packed.of(rows).matrix(length), seed)
        assert found.tolist() == [xxhash.xxh3_64_intdigest(row, seed) for row in rows]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_sums_of_rows_of_any_lengths_are_right(lengths: list[tuple[int, int]], seed: int) -> None:
    choose = random.Random(seed)
    rows = [
        (choose.randbytes((2, 22, 40, 300)[key]), choose.randbytes((0, 24, 150)[value]))
        for key, value in lengths
        for _ in range(choose.choice((3, 700)))
    ]
    choose.shuffle(rows)
    expected = sum(xxhash.xxh3_64_intdigest(key[2:] + value, len(key)) for key, value in rows)
    assert sum_row_hashes(PackedRows.of(rows)) == expected


@given(st.lists(KEYS, max_size=60))
def test_keys_are_put_in_order_and_equal_ones_are_told(keys: list[bytes]) -> None:
    found, is_same = order.in_order(Packed.of(keys))
    assert found.tolist() == sorted(range(len(keys)), key=keys.__getitem__)
    ordered = sorted(keys)
    assert is_same.tolist() == [n > 0 and ordered[n - 1] == key for n, key in enumerate(ordered)]


@given(st.dictionaries(KEYS, st.tuples(st.integers(0, 3), VALUES), max_size=60), st.integers(1, 7))
def test_runs_are_joined_in_the_order_of_keys(rows: dict[bytes, tuple[int, bytes]], portion: int) -> None:
    def run(number: int) -> Iterator[PackedRows]:
        mine = sorted((key, value) for key, (owner, value) in rows.items() if owner == number)
        for first in range(0, len(mine), portion):
            yield PackedRows.of(mine[first : first + portion])
            yield PackedRows.of([])

    found = [row for part in join_runs([run(number) for number in range(4)]) for row in part.rows()]
    assert found == sorted((key, value) for key, (_, value) in rows.items())


@given(st.lists(KEYS, unique=True, max_size=40), st.integers(1, 0xFFFE))
def test_rows_get_another_state_and_keep_what_they_are(keys: list[bytes], number: int) -> None:
    rows = [(b"\0\1" + key, key) for key in sorted(keys)]
    assert list(PackedRows.of(rows).renumber(number).rows()) == [
        (number.to_bytes(2, "big") + key, key) for key in sorted(keys)
    ]


@given(st.lists(KEYS, min_size=1, max_size=40))
def test_packed_strings_are_a_sequence(strings: list[bytes]) -> None:
    some = Packed.of(sorted(strings))
    assert some.strings() == [some[n] for n in range(len(some))] == sorted(strings)
    assert bisect_left(some, strings[0]) == sorted(strings).index(strings[0])


@given(
    st.integers(1, 20).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), max_size=30)), VALUES
)
def test_strings_of_one_size_are_handled_as_any_others(strings: list[bytes], other: bytes) -> None:
    width = len(strings[0]) if strings else 4
    rows = Packed.of_matrix(np.frombuffer(b"".join(strings), np.uint8).reshape(len(strings), width))
    others = Packed.of([other] * len(strings))
    for some in (rows, Packed.of(strings)):
        assert some.strings() == some.dense().strings() == strings
        assert some.take(slice(1, None)).behind(1).strings() == [each[1:] for each in strings[1:]]
        assert some.take(np.arange(len(strings))[::-1]).before(1).strings() == [each[:-1] for each in strings[::-1]]
        assert some.take(np.array([each > other for each in strings], np.bool_)).strings() == [
            each for each in strings if each > other
        ]
        assert some.prefix(b"ab").strings() == [b"ab" + each for each in strings]
        assert side_by_side(some, others, some).strings() == [each + other + each for each in strings]
        assert concatenate([some, others, rows]).strings() == strings + [other] * len(strings) + strings
        assert some.words(0).tolist() == [int.from_bytes(each[:8].ljust(8, b"\0"), "big") for each in strings]
        assert some.words(1).tolist() == [int.from_bytes(each[8:16].ljust(8, b"\0"), "big") for each in strings]


def test_a_repeated_number_takes_no_memory_and_cannot_be_written() -> None:
    numbers = packed.repeat(7, 1 << 40)
    assert (len(numbers), numbers[-1], packed.are_same(numbers)) == (1 << 40, 7, True)
    assert packed.chain_arrays([numbers[:2], numbers[:1]]).strides == (0,)
    assert packed.chain_arrays([numbers[:2], packed.repeat(8, 1)]).tolist() == [7, 7, 8]
    with pytest.raises(ValueError, match="read-only"):
        numbers[0] = 1
