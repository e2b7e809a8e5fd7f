"""A table file is known to be damaged by its own checksums, whichever of its bytes is another."""

from __future__ import annotations

import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.sst.scan import scan_rows
from pyspark_ckpt.state_store.sst.table_check import check_chunks, check_table

COMPAT = Path(__file__).parents[2] / "compat" / "v1"
Rows = list[tuple[bytes, bytes]]


def rows_of(count: int, value_bytes: int = 40) -> Rows:
    choose = random.Random(7)
    return [(b"\0\1" + number.to_bytes(8, "big"), choose.randbytes(value_bytes // 2) * 2) for number in range(count)]


def written(folder: Path, compression: str, count: int = 600, value_bytes: int = 40) -> Path:
    path = folder / f"{compression}-{count}-{value_bytes}.sst"
    write_table_file(path, rows_of(count, value_bytes), Tuning(1 << 20, compression))
    return path


def built(folder: Path) -> dict[str, Path]:
    """Table files that earlier code of this project wrote in place of RocksDB. Checkpoints may have such files."""
    with tarfile.open(Path(__file__).parent / "built_table_files.tar.gz") as packed:
        packed.extractall(folder / "built", filter="data")
    return {path.stem: path for path in sorted((folder / "built").iterdir())}


def of_a_database(folder: Path, compression: str) -> list[Path]:
    """Files that were ingested over others, that hide rows, and that compaction has written."""
    tuning = Tuning(1 << 20, compression)
    database = Database(folder / "db", tuning)
    try:
        for number in range(3):
            path = folder / f"in-{number}.sst"
            write_table_file(path, rows_of(500 + number), tuning)
            database.ingest([path])
        database.hide((rows_of(60)[50][0], rows_of(60)[59][0]))
        kept = folder / "kept"
        kept.mkdir()
        for number, path in enumerate(sorted((folder / "db").glob("*.sst"))):
            shutil.copy(path, kept / f"{number}.sst")
        database.compact()
        for path in (folder / "db").glob("*.sst"):
            shutil.copy(path, kept)
        return sorted(kept.iterdir())
    finally:
        database.close()


def is_refused(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        check_table(path)
    except FormatError as problem:
        return str(path) in str(problem)
    return False


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_every_flipped_bit_is_found(tmp_path: Path, compression: str) -> None:
    content = written(tmp_path, compression, count=100, value_bytes=300).read_bytes()
    other = tmp_path / "other.sst"
    choose = random.Random(compression)
    missed = []
    for at in choose.sample(range(len(content)), 800):
        flipped = bytearray(content)
        flipped[at] ^= 1 << choose.randrange(8)
        if not is_refused(other, bytes(flipped)):
            missed.append(at)
    assert missed == []


def test_every_bit_of_the_last_block_and_the_footer_counts(tmp_path: Path) -> None:
    content = written(tmp_path, "lz4", count=20).read_bytes()
    other = tmp_path / "other.sst"
    for bit in range(8 * (len(content) - 120), 8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert is_refused(other, bytes(flipped)), bit


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:0],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: content[-53:],
        lambda content: content + b"\0",
        lambda content: content + content,
        lambda content: b"\0" * 4096 + content,
        lambda content: content[:4096] + b"\0" * 4096 + content[8192:],
        lambda content: bytes(len(content)),
        lambda content: content[:-53] + b"\0" * 53,
        lambda content: content[4096:] + content[:4096],
    ],
)
def test_what_is_no_whole_table_file_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    content = written(tmp_path, "none").read_bytes()
    assert is_refused(tmp_path / "other.sst", spoil(content))


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_whole_files_pass_and_are_given_as_they_are(tmp_path: Path, compression: str) -> None:
    paths = [
        written(tmp_path, compression),
        written(tmp_path, compression, count=1),
        written(tmp_path, compression, count=30_000, value_bytes=200),
        written(tmp_path, compression, count=3, value_bytes=5 << 20),
        *of_a_database(tmp_path, compression),
    ]
    for path in paths:
        assert b"".join(check_chunks(path)) == path.read_bytes(), path


def test_files_of_earlier_releases_and_of_the_jvm_pass(tmp_path: Path) -> None:
    for archive in COMPAT.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path / archive.stem, filter="data")
    paths = list(tmp_path.rglob("*.sst"))
    for path in paths:
        check_table(path)
    assert len(paths) > 10


@pytest.mark.parametrize("name", ["lz4-prefixes", "zstd-keys", "none-keys"])
def test_files_that_were_built_by_earlier_code_are_read(name: str, tmp_path: Path) -> None:
    path, a_prefix = built(tmp_path)[name], 1 if name == "lz4-prefixes" else 10
    keys = [b"\0\1" + (n // a_prefix).to_bytes(4, "big") + n.to_bytes(8, "big") for n in range(1000)]
    expected = {key: b"value %d" % (n % 50) for n, key in enumerate(keys) if n % 7 != 6}
    check_table(path)
    database = Database(tmp_path / "db", Tuning(1 << 20, name.split("-", maxsplit=1)[0]))
    try:
        database.ingest([path])
        assert [database.get(key) for key in keys] == [expected.get(key) for key in keys]
        assert dict(database.rows_in(b"", b"\1")) == expected
        assert dict(row for some in scan_rows(database, b"", b"\1") for row in some.rows()) == expected
    finally:
        database.close()


def test_a_file_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_table(tmp_path / "gone.sst")


def test_a_file_that_is_changed_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "none", count=40_000, value_bytes=200)
    chunks = check_chunks(path)
    next(chunks)
    with path.open("r+b") as file:
        file.seek(-60, 2)
        file.write(b"\xff")
    with pytest.raises(FormatError, match="checksum"):
        list(chunks)
