"""Table files of Spark's stores are read whatever RocksDB has compressed their blocks with."""

from __future__ import annotations

import random
import zlib
from contextlib import closing
from pathlib import Path

import pytest
import rocksdict

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.sst.compressions import ZLIB, decompress_other
from pyspark_ckpt.state_store.sst.layout import compute_checksum
from pyspark_ckpt.state_store.sst.merged_rows import merge_rows, needs_own_reader
from pyspark_ckpt.state_store.sst.table import BlockRange, SortedTable

ROWS = [(number.to_bytes(4, "big"), random.Random(number).randbytes(20) * 8) for number in range(2000)]
COMPRESSIONS = {"none": 0, "snappy": 1, "bz2": 3, "lz4": 4, "lz4hc": 5, "zstd": 7}
"""Those that rocksdict writes, which has no zlib."""
OF_ZLIB = Path(__file__).with_name("of_zlib.sst")
"""A table file that RocksDB 9.8.4 of Spark 4.3 has written: 3,000 rows, of two bytes big-endian and a text."""


def _write(path: Path, compression: str) -> Path:
    options = rocksdict.Options(raw_mode=True)
    options.set_compression_type(getattr(rocksdict.DBCompressionType, compression)())
    tables = rocksdict.BlockBasedOptions()
    tables.set_format_version(5)
    options.set_block_based_table_factory(tables)
    writer = rocksdict.SstFileWriter(options=options)
    writer.open(str(path))
    for key, value in ROWS:
        writer[key] = value
    writer.finish()
    return path


def _read(path: Path) -> list[tuple[bytes, bytes]]:
    with closing(SortedTable(path, (ROWS[0][0], ROWS[-1][0]), may_merge=True)) as table:
        entries = BlockRange(table, 0, len(table.blocks)).entries()
        return [row for found in entries for row in zip(found.keys.strings(), found.values.strings(), strict=True)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_rows_are_read_with_each_compression(compression: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "table.sst", compression)
    assert _read(path) == ROWS
    assert compression == "none" or path.stat().st_size < sum(len(value) for _, value in ROWS) / 2


@pytest.mark.parametrize("compression", ["snappy", "bz2"])
def test_a_damaged_block_is_an_error_even_if_its_checksum_is_right(compression: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "table.sst", compression)
    whole = path.read_bytes()
    kind, draw = COMPRESSIONS[compression], random.Random(compression)
    size = _find_first_block(whole, kind)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(size)] ^= 1 << draw.randrange(8)
        checksum = compute_checksum(memoryview(bytes(damaged[:size])), kind)
        damaged[size + 1 : size + 5] = checksum.to_bytes(4, "little")
        path.write_bytes(damaged)
        try:
            _read(path)
        except FormatError as problem:
            refused += str(path) in str(problem)
    assert refused > 10


def _find_first_block(content: bytes, kind: int) -> int:
    """The size of the block at the begin: a checksum that fits follows it."""
    for size in range(20, len(content)):
        if content[size] == kind:
            checksum = compute_checksum(memoryview(content[:size]), kind)
            if content[size + 1 : size + 5] == checksum.to_bytes(4, "little"):
                return size
    raise AssertionError("no block was found")


def test_a_table_of_sparks_rocksdb_with_zlib_is_read() -> None:
    assert needs_own_reader(OF_ZLIB.parent, [OF_ZLIB.name])
    rows = list(merge_rows(OF_ZLIB.parent, [OF_ZLIB.name], b","))
    assert rows == [(number.to_bytes(2, "big"), f"abcdefgh-{number}".encode() * 10) for number in range(3000)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_other_tables_are_left_to_rocksdb(compression: str, tmp_path: Path) -> None:
    assert not needs_own_reader(tmp_path, [_write(tmp_path / "table.sst", compression).name])


def test_blocks_of_zlib_have_their_length_and_deflate_without_a_head() -> None:
    content = b"".join(value for _, value in ROWS[:20])
    stream = zlib.compressobj(wbits=-14)
    stored = stream.compress(content) + stream.flush()
    assert decompress_other(ZLIB, memoryview(b"\x80\x19" + stored), 2, len(content)) == content
    for wrong, length in ((stored, len(content) - 1), (stored, len(content) + 1), (stored[:-9], len(content))):
        with pytest.raises(ValueError, match=r"deflate|should have|does not end"):
            decompress_other(ZLIB, memoryview(b"\x80\x19" + wrong), 2, length)
