"""Deltas that somebody made: zips whose sizes lie, and what zipfile would otherwise do with them."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
import xxhash

from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format import names
from pyspark_ckpt.state_store.format.delta import (
    MAX_META_BYTES,
    DeltaFile,
    DeltaMeta,
    read_delta,
    read_meta,
    write_delta,
)
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.meta import StoreMeta
from tests.fuzz.mutations import little_memory

STORE = StoreMeta(1, "ab" * 16, "0", 1, 0, ())
NAME = names.DeltaName(STORE.marker, Marker(0, "0"))
TABLE = b"table" * 100


def listed(name: str = "0000.sst", size_bytes: int = len(TABLE)) -> DeltaFile:
    return DeltaFile(name, size_bytes, "0" * 64, xxhash.xxh3_128_hexdigest(TABLE))


def meta_of(*files: DeltaFile) -> bytes:
    return msgspec.json.encode(DeltaMeta(1, STORE, 0, files))


def packed(*entries: tuple[str, bytes, int]) -> bytes:
    """A zip of names, contents and compression methods."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content, method in entries:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return made.getvalue()


def changed(content: bytes, offset: int, value: bytes) -> bytes:
    """The zip with a field of the last entry of its directory changed, which is that of meta.json."""
    at = content.rindex(b"PK\x01\x02") + offset
    return content[:at] + value + content[at + len(value) :]


def plain(meta: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    return packed(("0000.sst", TABLE, zipfile.ZIP_STORED), ("meta.json", meta, method))


_HUGE = b"[" * (48 << 20)
_DIRECTORY_SIZE, _FILE_SIZE, _COMPRESSED_SIZE, _FLAGS, _OFFSET = 12, 24, 20, 8, 42


def _with_directory_of(content: bytes, size_bytes: int) -> bytes:
    at = content.rindex(b"PK\x05\x06") + _DIRECTORY_SIZE
    return content[:at] + struct.pack("<I", size_bytes) + content[at + 4 :]


HOSTILE: dict[str, Callable[[], bytes]] = {
    "metadata that inflates to much": lambda: plain(_HUGE),
    "metadata that inflates to more than it says": lambda: changed(plain(_HUGE), _FILE_SIZE, struct.pack("<I", 900)),
    "metadata that is larger than it can inflate to": lambda: changed(
        plain(meta_of(listed())), _FILE_SIZE, struct.pack("<I", 8 << 20)
    ),
    "metadata of more bytes than the object": lambda: changed(
        plain(meta_of(listed()), zipfile.ZIP_STORED), _COMPRESSED_SIZE, struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    ),
    "metadata by a method whose memory the zip chooses": lambda: plain(meta_of(listed()), zipfile.ZIP_LZMA),
    "metadata by another method": lambda: plain(meta_of(listed()), zipfile.ZIP_BZIP2),
    "metadata that asks for a password": lambda: changed(plain(meta_of(listed())), _FLAGS, b"\x01\x00"),
    "metadata that lies elsewhere": lambda: changed(plain(meta_of(listed())), _OFFSET, b"\xff\xff\xff\x7f"),
    "metadata without end": lambda: plain(b"[" * 100_000),
    "no metadata": lambda: packed(("0000.sst", TABLE, zipfile.ZIP_STORED)),
    "empty metadata": lambda: plain(b""),
    "a table file that inflates": lambda: packed(
        ("0000.sst", TABLE, zipfile.ZIP_DEFLATED), ("meta.json", meta_of(listed()), zipfile.ZIP_STORED)
    ),
    "a table file that is listed twice": lambda: plain(meta_of(listed(), listed())),
    "a table file that is not there": lambda: plain(meta_of(listed(), listed("0001.sst"))),
    "a table file of another size": lambda: plain(meta_of(listed(size_bytes=len(TABLE) + 1))),
    "a table file that leads out": lambda: packed(
        ("../0000.sst", TABLE, zipfile.ZIP_STORED), ("meta.json", meta_of(listed("../0000.sst")), zipfile.ZIP_STORED)
    ),
    "a directory that is larger than the object": lambda: _with_directory_of(plain(meta_of(listed())), 0xFFFFFFF0),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("how", ["whole", "ranges", "from disk"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_delta_is_refused_in_little_memory(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "from disk":  # as one that is large
        monkeypatch.setattr("pyspark_ckpt.state_store.format.delta.IN_MEMORY_BYTES", -1)
    content = HOSTILE[name]()
    place = LocalPlace(tmp_path / "place")
    place.put(str(NAME), content)
    read: Callable[[], object] = partial(read_delta, place, NAME, len(content), tmp_path / "fetched")
    if how == "ranges":
        read = partial(read_meta, place, NAME, len(content))
    with little_memory(0, 1 << 20), pytest.raises(FormatError, match=str(NAME)):
        read()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "fetched") == ["place"]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = packed(
            ("0000.sst", b"other", zipfile.ZIP_STORED),
            ("0000.sst", TABLE, zipfile.ZIP_STORED),
            ("meta.json", meta_of(listed()), zipfile.ZIP_STORED),
        )
    place = LocalPlace(tmp_path / "place")
    place.put(str(NAME), content)
    with pytest.raises(FormatError, match="usable"):
        read_delta(place, NAME, len(content), tmp_path / "fetched")


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    descriptor = {"key_schema": "x" * (MAX_META_BYTES + 1)}
    store = msgspec.convert(
        {
            **msgspec.to_builtins(STORE),
            "counter": 1,
            "states": [{"number": 1, "name": "default", "rows": 0, "descriptor": descriptor}],
        },
        StoreMeta,
    )
    with pytest.raises(InvalidInputError, match="has room"):
        write_delta(LocalPlace(tmp_path / "place"), NAME, store, [])
    assert not list((tmp_path / "place").iterdir())
