"""Spark's compressed state files: read piece by piece, and refused by name when they are damaged."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from pyspark_ckpt.offline.adopting.records import Change, read_changelog, read_changes
from pyspark_ckpt.offline.adopting.streams import ByteStream, open_stream
from pyspark_ckpt.state_store.errors import FormatError

CONTENT = bytes(range(256)) * 300


def write_lz4(content: bytes, block: int = 32_768) -> bytes:
    """As lz4-java writes a stream: blocks, some of them as they are, and an empty one at the end."""
    codec = pa.Codec("lz4_raw")
    parts = []
    for at in range(0, len(content), block):
        plain = content[at : at + block]
        stored = codec.compress(plain, asbytes=True)
        token, stored = (0x25, stored) if at % (2 * block) == 0 else (0x15, plain)
        checksum = xxhash.xxh32_intdigest(plain, 0x9747B28C) & 0xFFFFFFF
        parts.append(b"LZ4Block" + struct.pack("<BiiI", token, len(stored), len(plain), checksum) + stored)
    return b"".join([*parts, b"LZ4Block" + struct.pack("<BiiI", 0x15, 0, 0, 0)])


def _zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


def _snappy(content: bytes) -> bytes:
    codec = pa.Codec("snappy")
    blocks = [codec.compress(content[at : at + 9000], asbytes=True) for at in range(0, len(content), 9000)]
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return head + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _lzf(content: bytes) -> bytes:
    """Blocks, some of them as they are. Others copy all but the first 256 bytes from 256 bytes before."""
    parts = []
    for number, at in enumerate(range(0, len(content), 9000)):
        plain = content[at : at + 9000]
        if number % 3 == 0:
            parts.append(b"ZV\0" + struct.pack(">H", len(plain)) + plain)
            continue
        stored = b"".join(b"\x1f" + plain[begin : begin + 32] for begin in range(0, 256, 32))
        left = len(plain) - 256
        while left:
            length = min(left, 264) if left - min(left, 264) not in (1, 2) else 200
            length_bits = min(length - 2, 7)
            more = bytes([length - 9]) if length_bits == 7 else b""
            stored += bytes([length_bits << 5]) + more + b"\xff"
            left -= length
        parts.append(b"ZV\1" + struct.pack(">HH", len(stored), len(plain)) + stored)
    return b"".join(parts)


WRITERS = {"lz4": write_lz4, "zstd": _zstd, "snappy": _snappy, "lzf": _lzf}


@contextmanager
def _stream(content: bytes, folder: Path) -> Iterator[ByteStream]:
    (folder / "file").write_bytes(content)
    with open_stream(folder / "file", "the file") as stream:
        yield stream


@pytest.mark.parametrize("codec", WRITERS)
def test_a_compressed_file_is_read_in_pieces_of_any_size(codec: str, tmp_path: Path) -> None:
    draw, at = random.Random(1), 0
    with _stream(WRITERS[codec](CONTENT), tmp_path) as stream:
        while at < len(CONTENT):
            count = min(draw.choice([0, 1, 7, 5000, 40_000]), len(CONTENT) - at)
            assert CONTENT[at:].startswith(stream.peek(3))
            assert stream.take(count) == CONTENT[at : at + count]
            at += count
        assert stream.peek(1) == b""
        with pytest.raises(FormatError, match="the file is damaged: it ends within a record"):
            stream.take(1)


@pytest.mark.parametrize("codec", WRITERS)
def test_a_cut_file_is_an_error_that_names_it(codec: str, tmp_path: Path) -> None:
    whole = WRITERS[codec](CONTENT)
    draw = random.Random(2)
    for end in [0, 1, 8, len(whole) - 40, *(draw.randrange(len(whole) - 40) for _ in range(100))]:
        with (
            pytest.raises(FormatError, match="the file is damaged"),
            _stream(whole[:end], tmp_path) as stream,
        ):
            stream.take(len(CONTENT))


def test_a_flipped_bit_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    whole = bytearray(write_lz4(CONTENT))
    levels = {found.end() for found in re.finditer(b"LZ4Block", whole)}
    draw = random.Random(3)
    for _ in range(300):
        at, bit = draw.randrange(len(whole) - 21), 1 << draw.randrange(8)
        whole[at] ^= bit
        is_harmless = at in levels and bit < 0x10  # how well a block is compressed
        outcome = nullcontext() if is_harmless else pytest.raises(FormatError, match="the file is damaged")
        with outcome, _stream(bytes(whole), tmp_path) as stream:
            assert stream.take(len(CONTENT)) == CONTENT
        whole[at] ^= bit


def test_records_are_read_in_each_version(tmp_path: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    def sized(value: bytes) -> bytes:
        return struct.pack(">i", len(value)) + value

    end = struct.pack(">i", -1)
    plain = sized(b"key") + sized(b"value") + sized(b"gone") + end + end
    typed = b"\x01" + sized(b"key") + sized(b"value") + b"\x11" + sized(b"key") + sized(b"more")
    typed += b"\x10" + sized(b"gone") + end + b"\x00"
    lineage = text('[{"version":4,"checkpointUniqueId":"a-b"}]')
    put, gone, added = Change(b"key", b"value"), Change(b"gone", None), Change(b"key", b"more", is_added=True)
    with _stream(write_lz4(plain), tmp_path) as stream:
        assert list(read_changes(stream, "file")) == [put, gone]
    for content, changes, named in [
        (plain, [put, gone], None),
        (text("v2") + typed, [put, added, gone], None),
        (text("v3") + lineage + plain, [put, gone], [(4, "a-b")]),
        (text("v4") + lineage + typed, [put, added, gone], [(4, "a-b")]),
    ]:
        with _stream(write_lz4(content), tmp_path) as stream:
            found = read_changelog(stream, "file")
            assert list(found.changes) == changes
            assert (found.lineage and [(each.version, each.checkpointUniqueId) for each in found.lineage]) == named
    with (
        pytest.raises(FormatError, match="there is more after its end"),
        _stream(write_lz4(plain + b"x"), tmp_path) as more,
    ):
        list(read_changes(more, "file"))


def test_a_flipped_bit_of_lzf_is_an_error_or_changes_bytes_alone(tmp_path: Path) -> None:
    """This codec has no checksum: what is checked is that nothing outside of the block is read."""
    whole = bytearray(_lzf(CONTENT))
    draw, refused = random.Random(4), 0
    for _ in range(300):
        at, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        whole[at] ^= bit
        try:
            with _stream(bytes(whole), tmp_path) as stream:
                stream.take(len(CONTENT))
        except FormatError as problem:
            refused += "the file is damaged" in str(problem)
        whole[at] ^= bit
    assert refused


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("02616263", b"abc"),
        ("0061" + "e0ff00", b"a" * 265),  # the longest copy, of the byte before it
        ("0461626364" + "65" + "2004", None),
        ("0161" + "62" + "2001", b"ababa"),
        ("0061" + "2001", None),
        ("0061" + "e0", None),
        ("05616263", None),
    ],
)
def test_blocks_of_lzf_are_as_liblzf_says(block: str, expected: bytes | None, tmp_path: Path) -> None:
    stored = bytes.fromhex(block)
    size = len(expected or b"12345")
    outcome = nullcontext() if expected is not None else pytest.raises(FormatError, match="the file is damaged")
    with outcome, _stream(b"ZV\1" + struct.pack(">HH", len(stored), size) + stored, tmp_path) as stream:
        assert stream.take(size) == expected
