"""All rows of a database are read, whatever options its files were written with: random ones against a dictionary."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import rocksdict

from pyspark_ckpt.offline.adopting.stored_rows import read_portions
from pyspark_ckpt.state_store.database.scratch import ScratchDatabase
from pyspark_ckpt.state_store.errors import FormatError

Rows = dict[bytes, bytes]
WRITTEN = 40

COMPRESSIONS: dict[str, Callable[[], rocksdict.DBCompressionType]] = {
    name: getattr(rocksdict.DBCompressionType, name) for name in ("none", "snappy", "zlib", "lz4", "lz4hc", "zstd")
}


def _options(draw: random.Random, compression: str) -> rocksdict.Options:
    """Options with which a query of Spark may have run."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(COMPRESSIONS[compression]())
    options.set_disable_auto_compactions(draw.random() < 0.5)
    tables = rocksdict.BlockBasedOptions()
    tables.set_format_version(draw.choice([3, 4, 5, 6]))
    tables.set_block_size(draw.choice([64, 4 << 10]))
    tables.set_block_restart_interval(draw.choice([1, 16]))
    if draw.random() < 0.2:
        tables.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    options.set_block_based_table_factory(tables)
    return options


def _write(folder: Path, draw: random.Random, compression: str) -> Rows:
    """Write, delete and compact at random; some of it is left in the log. Return what must be there."""
    options, expected, widest = _options(draw, compression), Rows(), draw.choice([3, 40, 700])
    database = rocksdict.Rdict(str(folder), options, column_families={"default": options})
    for _ in range(draw.randrange(1, WRITTEN)):
        for _ in range(draw.randrange(300)):
            key = draw.randbytes(draw.randrange(1, 3)) + b"k" * draw.randrange(widest)
            if draw.random() < 0.3:
                database.delete(key)
                expected.pop(key, None)
            else:
                expected[key] = draw.randbytes(draw.randrange(widest))
                database[key] = expected[key]
        if draw.random() < 0.2:
            begin, end = sorted((draw.randbytes(1), draw.randbytes(1)))
            database.delete_range(begin, end)
            expected = {key: value for key, value in expected.items() if not begin <= key < end}
        if draw.random() < 0.5:
            database.flush()
        if draw.random() < 0.1:
            database.compact_range(None, None)
    database.close()
    return expected


def _read(database: ScratchDatabase) -> list[tuple[bytes, bytes]]:
    return [row for portion in read_portions(database) for row in portion.rows()]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_that_were_written(compression: str, seed: int, tmp_path: Path) -> None:
    expected = _write(tmp_path / "db", random.Random(seed), compression)
    with closing(ScratchDatabase(tmp_path / "db")) as database:
        assert _read(database) == sorted(expected.items())


def test_what_is_written_later_is_read_too(tmp_path: Path) -> None:
    expected = _write(tmp_path / "db", random.Random(5), "lz4")
    with closing(ScratchDatabase(tmp_path / "db")) as database:
        for number in range(3):
            database.write([(b"later", b"%d" % number), (b"gone", None)])
            expected |= {b"later": b"%d" % number}
            assert _read(database) == sorted(expected.items())


@pytest.mark.parametrize("compression", ["lz4", "snappy"])
def test_a_flipped_byte_is_an_error_or_does_no_harm(compression: str, tmp_path: Path) -> None:
    draw, refused = random.Random(9), []
    expected = sorted(_write(tmp_path / "db", random.Random(2), compression).items())
    with closing(ScratchDatabase(tmp_path / "db")) as database:
        database.seal()
    (table,) = (tmp_path / "db").glob("*.sst")
    whole = table.read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= draw.randrange(1, 256)
        table.write_bytes(damaged)
        try:
            with closing(ScratchDatabase(tmp_path / "db")) as database:
                assert _read(database) == expected
        except FormatError as problem:
            refused.append(str(problem))
        table.write_bytes(whole)
    assert len(refused) > 30
    assert all(table.name in each for each in refused)
