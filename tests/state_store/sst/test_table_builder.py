"""Table files that are built of many rows at once are to RocksDB what its own are."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark
import pytest
import rocksdict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.state_store.columns.packed import Packed
from pyspark_ckpt.state_store.columns.rows import RowColumns
from pyspark_ckpt.state_store.columns.writes import Writes
from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file
from pyspark_ckpt.state_store.database.tuning import open_database
from pyspark_ckpt.state_store.errors import InternalError, StorageError
from pyspark_ckpt.state_store.sst import builder as table_builder
from pyspark_ckpt.state_store.sst.builder import TableBuilder, can_be_built, write_columns
from pyspark_ckpt.state_store.sst.layout import encode_number
from pyspark_ckpt.state_store.sst.rolling_writer import RollingWriter
from pyspark_ckpt.state_store.sst.scan import columns_of
from pyspark_ckpt.state_store.sst.table import SortedTable
from tests.length import TIMES

Rows = list[tuple[bytes, bytes]]

TUNING = Tuning(1 << 20)
FILTER = b"fullfilter.rocksdb.BuiltinBloomFilter"
EVERYTHING = 1 << 40
DIFFER = {
    *("creating.session.identity", "data.size", "index.size", "num.data.blocks", "tail.start.offset"),
    *("block.based.table.whole.key.filtering", "filter.size", "num.filter_entries"),
}
"""What a file says of itself that RocksDB would not say of its own: how it is laid out, and what its filter is of."""


def rows_of(count: int, *, key_bytes: int = 20, value_bytes: int = 24, a_prefix: int = 1, seed: int = 1) -> Rows:
    """Rows with so many keys for each prefix."""
    choose = random.Random(seed)
    begins = [b"\0\1" + choose.randbytes(4) for _ in range(-(-count // a_prefix))]
    return sorted(
        (
            begins[n // a_prefix] + n.to_bytes(8, "little")[: key_bytes - 6].ljust(key_bytes - 6, b"\0"),
            choose.randbytes(2).rjust(value_bytes, b"\0"),
        )
        for n in range(count)
    )


@pytest.fixture(autouse=True)
def least_built_rows(monkeypatch: pytest.MonkeyPatch) -> int:
    """All files are built, also of few rows; how many there must be else."""
    usual = table_builder.MIN_ROWS
    monkeypatch.setattr(table_builder, "MIN_ROWS", 1)
    return usual


def built(folder: Path, rows: Rows, tuning: Tuning = TUNING, *, at_once: int = 1000, name: str = "rows") -> list[Path]:
    writer = RollingWriter(folder, name, tuning, EVERYTHING)
    for first in range(0, len(rows), at_once):
        writer.write(RowColumns.of(rows[first : first + at_once]))
    return writer.finish()


@contextmanager
def table(path: Path, rows: Rows) -> Iterator[SortedTable]:
    file = SortedTable(path, (rows[0][0], rows[-1][0]))
    yield file
    file.close()


def filter_in(path: Path, rows: Rows) -> bytes:
    with table(path, rows) as file:
        at, size = file._meta[FILTER]
        return file.bytes_at(at, size)


SIZES = st.tuples(
    st.one_of(st.integers(6, 60), st.integers(61, 237)), st.sampled_from([0, 1, 24, 100, 127, 128, 300, 512])
)


@given(
    sizes=SIZES,
    count=st.sampled_from([64, 65, 500, 3000, 9000]),
    a_prefix=st.sampled_from([1, 3, 500]),
    at_once=st.sampled_from([64, 700, 10_000]),
    compression=st.sampled_from(["lz4", "zstd", "none"]),
    are_uneven=st.booleans(),
)
@settings(max_examples=35 * TIMES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rocksdb_reads_what_was_written(
    sizes: tuple[int, int], count: int, a_prefix: int, at_once: int, compression: str, *, are_uneven: bool
) -> None:
    key_bytes, value_bytes = sizes
    if key_bytes < 8:
        count, a_prefix = 64, 1
    rows = rows_of(count, key_bytes=key_bytes, value_bytes=value_bytes, a_prefix=a_prefix)
    if are_uneven:
        rows = sorted((key + b"z" * (n % 3), value[: n % 2 or None]) for n, (key, value) in enumerate(rows))
    tuning = TUNING.using(compression)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = built(folder, rows, tuning, at_once=at_once)
        database = Database(folder / "db", tuning)
        database.ingest(files)
        end = b"\0\2"
        assert list(database.rows_in(b"", end)) == rows
        assert [row for some in columns_of(database, b"", end) for row in some.rows()] == rows
        assert all(database.get(key) == value for key, value in rows[:: max(1, count // 500)])
        absent = [key[:-1] + b"\xff" for key, _ in rows[:: max(1, count // 500)]]
        assert [database.get(key) for key in absent if key not in dict(rows)].count(None) > 0
        middle = rows[count // 2][0]
        assert list(database.rows_in(middle, end)) == rows[count // 2 :]
        database.compact()
        assert list(database.rows_in(b"", end)) == rows
        database.close()


@pytest.mark.parametrize("key_bytes", [7, 8, 9, 16, 17, 30, 128, 129, 240])
@pytest.mark.parametrize(("count", "a_prefix"), [(128, 1), (254, 127)])
def test_a_filter_of_keys_and_prefixes_is_that_of_rocksdb(
    count: int, a_prefix: int, key_bytes: int, quick_path: Path
) -> None:
    rows = rows_of(count, key_bytes=key_bytes, a_prefix=a_prefix)  # with so many, RocksDB takes six bits for each
    write_table_file(quick_path / "theirs.sst", rows, TUNING)
    builder = TableBuilder(quick_path / "ours.sst", TUNING, by_prefix=False)
    for first in range(0, len(rows), 100):
        builder.write(RowColumns.of(rows[first : first + 100]))
    builder.finish()
    assert filter_in(quick_path / "ours.sst", rows) == filter_in(quick_path / "theirs.sst", rows)


def looked_up(folder: Path, files: Sequence[Path], keys: Sequence[bytes]) -> tuple[list[object], dict[str, int]]:
    """What RocksDB finds for some keys, and how often its filters were asked, and said no."""
    options = TUNING.options()
    options.enable_statistics()
    database = open_database(folder, options, rocksdict.AccessType.read_write())
    database.ingest_external_file([str(path) for path in files], rocksdict.IngestExternalFileOptions())
    found = [database.get(key) for key in keys]
    statistics = options.get_statistics() or ""
    database.close()
    counts = re.findall(r"rocksdb\.bloom\.filter\.(\S+) COUNT : (\d+)", statistics)
    return found, {name: int(count) for name, count in counts}


@pytest.mark.parametrize(("a_prefix", "useful"), [(1, "prefix.useful"), (100, "useful")])
def test_keys_that_are_not_there_are_passed_over(a_prefix: int, useful: str, quick_path: Path) -> None:
    rows = rows_of(20_000, a_prefix=a_prefix)
    choose = random.Random(3)
    absent = [choose.choice(rows)[0][: 2 if a_prefix == 1 else 6] + choose.randbytes(18) for _ in range(5000)]
    absent = [key[:20] for key in absent if rows[0][0] < key < rows[-1][0]]
    assert len(absent) > 4000
    found, counts = looked_up(quick_path / "db", built(quick_path, rows), absent)
    assert not any(found)
    assert len(absent) * 0.97 < counts[useful] <= len(absent)


def test_a_file_says_of_itself_what_rocksdb_would_say(quick_path: Path) -> None:
    rows = rows_of(5000, key_bytes=130)
    write_table_file(quick_path / "theirs.sst", rows, TUNING)
    ours, again = built(quick_path, rows) + built(quick_path, rows, name="again")
    with table(quick_path / "theirs.sst", rows) as file:
        expected = dict(file.properties)
    with table(ours, rows) as file:
        said = dict(file.properties)
    with table(again, rows) as file:
        said_again = dict(file.properties)
    assert list(said) == list(expected)
    differ = {name.decode().removeprefix("rocksdb.") for name in said if said[name] != expected[name]}
    assert differ <= DIFFER
    assert {name for name in said if said[name] != said_again[name]} == {b"rocksdb.creating.session.identity"}


@pytest.mark.parametrize("a_prefix", [1, 100])
@pytest.mark.parametrize("are_uneven", [False, True])
def test_rows_that_are_deleted_hide_older_ones_as_those_that_rocksdb_deletes(
    a_prefix: int, *, are_uneven: bool, quick_path: Path
) -> None:
    older = rows_of(3000, a_prefix=a_prefix)
    if are_uneven:
        older = sorted((key + b"z" * (n % 3), value) for n, (key, value) in enumerate(older))
    changes = [(key, (None, b"", b"new")[n % 3]) for n, (key, _) in enumerate(older) if n % 4]
    expected = [(key, value) for key, value in {**dict(older), **dict(changes)}.items() if value is not None]
    for name in ("ours", "theirs"):
        path, folder = quick_path / f"{name}.sst", quick_path / name
        if name == "ours":
            write_columns(path, [Writes.of(changes)], TUNING)
        else:
            write_table_file(path, changes, TUNING)
        with table(path, [(key, b"") for key, _ in changes]) as file:
            said = {each: file.properties[f"rocksdb.{each}".encode()] for each in ("deleted.keys", "num.entries")}
        assert said == {"deleted.keys": encode_number(750), "num.entries": encode_number(2250)}
        database = Database(folder, TUNING)
        write_table_file(quick_path / "older.sst", older, TUNING)
        database.ingest([quick_path / "older.sst"])
        database.ingest([path])
        for _ in range(2):
            assert list(database.rows_in(b"", b"\0\2")) == expected
            assert [row for some in columns_of(database, b"", b"\0\2") for row in some.rows()] == expected
            assert [database.get(key) for key, _ in older] == [dict(expected).get(key) for key, _ in older]
            database.compact()
        database.close()


def test_the_cache_takes_no_block_of_a_file_for_that_of_another(quick_path: Path) -> None:
    databases = []
    for number in range(8):
        rows = [(key, number.to_bytes(24, "little")) for key, _ in rows_of(2000)]
        database = Database(quick_path / f"db-{number}", TUNING)
        database.ingest(built(quick_path, rows, name=str(number)))
        databases.append((database, rows))
    for _ in range(2):
        for database, rows in databases:
            assert all(database.get(key) == value for key, value in rows[::20])
    for database, _ in databases:
        database.close()


def of_state(number: int, rows: Rows) -> Rows:
    return [(bytes([0, number]) + key[2:], value) for key, value in rows]


def test_rows_of_many_sizes_and_large_ones_are_written_by_rocksdb(quick_path: Path) -> None:
    plain, strings = of_state(1, rows_of(3000)), of_state(2, rows_of(3000, key_bytes=25))
    strings = [(key[: 12 + n % 5].ljust(25 - n % 7, b"x"), value[: n % 3]) for n, (key, value) in enumerate(strings)]
    many = [(key, value[:1] * (n % 300)) for n, (key, value) in enumerate(of_state(3, rows_of(3000)))]
    large = [(key, value * 40) for key, value in of_state(4, rows_of(3000))]
    after = of_state(5, rows_of(3000))
    assert [can_be_built(RowColumns.of(rows)) for rows in (plain, sorted(strings), many, large)] == [
        True,
        True,
        False,
        False,
    ]
    parts = [plain, sorted(strings), many, large, after]
    writer = RollingWriter(quick_path, "rows", TUNING, EVERYTHING)
    kinds = []
    for part in parts:
        writer.write(RowColumns.of(part))
        kinds.append(type(writer._open).__name__)
    files = writer.finish()
    assert kinds == ["TableBuilder", "TableBuilder", "TableWriter", "TableWriter", "TableWriter"]
    assert len(files) == 2  # the second one is not full
    assert rows_in(quick_path, files) == [row for part in parts for row in part]


def rows_in(folder: Path, files: Sequence[Path]) -> Rows:
    database = Database(folder / "db", TUNING)
    database.ingest(files)
    found = list(database.rows_in(b"", b"\xff" * 9))
    database.close()
    return found


def test_a_file_that_begins_with_few_rows_is_written_by_rocksdb(
    least_built_rows: int, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_builder, "MIN_ROWS", least_built_rows)
    writer = RollingWriter(quick_path, "few", TUNING, EVERYTHING)
    writer.write(RowColumns.of(rows_of(least_built_rows - 1)))
    assert type(writer._open).__name__ == "TableWriter"
    assert len(writer.finish()) == 1


def test_a_filter_of_prefixes_is_for_rows_that_hardly_share_any(quick_path: Path) -> None:
    alone, shared = rows_of(4000), rows_of(4000, a_prefix=4)
    assert len(built(quick_path, alone, name="alone")) == 1
    assert len(built(quick_path, [*alone, *of_state(2, shared)], name="alone, shared")) == 2
    assert len(built(quick_path, [*shared, *of_state(2, alone)], name="shared, alone")) == 1
    said = [by_prefix(path) for path in sorted(quick_path.glob("*.sst"))]
    assert said == [True, False, True, False]  # of "alone, shared" the first one, of "alone" and of "shared, alone"


def by_prefix(path: Path) -> bool:
    file = SortedTable(path, (b"", b""))
    said = file.properties[b"rocksdb.block.based.table.whole.key.filtering"]
    file.close()
    return said == b"0"


def test_a_file_ends_when_it_takes_much_memory_however_small_it_is(quick_path: Path) -> None:
    rows = [(n.to_bytes(8, "big").ljust(240, b"k"), b"") for n in range(40_000)]
    writer = RollingWriter(quick_path, "rows", TUNING, 1 << 20)
    most = 0
    for first in range(0, len(rows), 2000):
        writer.write(RowColumns.of(rows[first : first + 2000]))
        most = max(most, writer.memory_bytes)
    files = writer.finish()
    assert most < 1 << 20
    assert len(files) > 1
    assert sum(path.stat().st_size for path in files) < 1 << 20
    assert rows_in(quick_path, files) == rows


@pytest.mark.parametrize("at", [(5, 4), (4, 4), (99, 100), (100, 99)], ids=str)
@pytest.mark.parametrize("a_prefix", [1, 200])
def test_rows_out_of_order_are_refused(at: tuple[int, int], a_prefix: int, quick_path: Path) -> None:
    rows = rows_of(200, a_prefix=a_prefix)
    one, other = at
    rows[one], rows[one + 1] = rows[other + 1], rows[other]
    if one == other:
        rows[one] = rows[one + 1]
    with pytest.raises(InternalError, match="not in the order of keys"):
        built(quick_path, rows, at_once=100)


def test_rows_out_of_order_are_refused_also_from_file_to_file(quick_path: Path) -> None:
    writer = RollingWriter(quick_path, "rows", TUNING, 1)
    rows = rows_of(4000)
    writer.write(RowColumns.of(rows[2000:]))
    assert writer._open is None
    with pytest.raises(InternalError, match="not in the order of keys"):
        writer.write(RowColumns.of(rows[:2000]))


def test_a_file_that_cannot_be_written_is_named(quick_path: Path) -> None:
    with pytest.raises(StorageError, match=r"Could not write the table file .*rows-0\.sst: .*No such file"):
        built(quick_path / "nowhere", rows_of(100))
    builder = TableBuilder(quick_path / "full.sst", TUNING, by_prefix=True)
    (quick_path / "full.sst").unlink()
    (quick_path / "full.sst").symlink_to("/dev/full")
    builder.write(RowColumns.of(rows_of(1000)))
    with pytest.raises(StorageError, match=r"Could not write the table file .*full\.sst: .*No space left"):
        builder.finish()


def test_strings_may_lie_anywhere(quick_path: Path) -> None:
    """The last key of all ends where the data does, and keys may be shorter than a word."""
    keys = sorted(b"abcd" + n.to_bytes(2, "big") for n in range(300))
    rows = RowColumns(Packed.of(keys), Packed.of([b""] * 300))
    writer = RollingWriter(quick_path, "rows", TUNING, EVERYTHING)
    writer.write(rows)
    found, _ = looked_up(quick_path / "db", writer.finish(), [*keys, b"abcd\x01\xff", b"abc"])
    assert found == [b""] * 300 + [None, None]


JAVA = """
import org.rocksdb.*;
class Read {
    public static void main(String[] paths) throws Exception {
        for (String path : paths) {
            SstFileReader reader = new SstFileReader(new Options());
            reader.open(path);
            reader.verifyChecksum();
            SstFileReaderIterator rows = reader.newIterator(new ReadOptions());
            long sum = 0, count = 0;
            for (rows.seekToFirst(); rows.isValid(); rows.next()) {
                count++;
                for (byte each : rows.key()) sum = 31 * sum + (each & 255);
                for (byte each : rows.value()) sum = 31 * sum + (each & 255);
            }
            rows.status();
            System.out.println(count + " " + sum + " " + reader.getTableProperties().getNumEntries());
        }
    }
}
"""


def test_the_rocksdb_of_spark_reads_them_and_finds_no_wrong_checksum(quick_path: Path) -> None:
    rows, files = rows_of(10_000), []
    for compression in ("lz4", "zstd", "none"):
        files += built(quick_path, rows, TUNING.using(compression), name=compression)
    (quick_path / "Read.java").write_text(JAVA, encoding="utf-8")
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("rocksdbjni-*.jar")
    command = ["java", "-cp", str(jar), str(quick_path / "Read.java"), *map(str, files)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    total = 0
    for each in b"".join(key + value for key, value in rows):
        total = (31 * total + each) & 0xFFFFFFFFFFFFFFFF
    signed = total - (1 << 64) if total >> 63 else total
    assert done.stdout.splitlines() == [f"10000 {signed} 10000"] * 3
