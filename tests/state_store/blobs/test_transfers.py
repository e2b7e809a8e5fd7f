"""An object that is copied through this process appears with the right bytes or not at all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.transfers import PIECE_BYTES, StoredFile, copy_object, fetch, is_intact, send
from pyspark_ckpt.state_store.errors import FormatError

OTHER = "00" * 16


@pytest.fixture
def source(tmp_path: Path) -> LocalPlace:
    return LocalPlace(tmp_path / "source")


@pytest.fixture
def file(source: LocalPlace, tmp_path: Path) -> StoredFile:
    path = tmp_path / "local"
    path.write_bytes(b"0123456789abcdef" * (PIECE_BYTES // 16) + b"more than a piece")
    sent = send(source, "name", path)
    assert not path.exists()
    return sent


def test_an_object_is_copied_whole_when_its_checksum_is_right(
    source: LocalPlace, file: StoredFile, tmp_path: Path
) -> None:
    target = LocalPlace(tmp_path / "target")
    copy_object(source, file, target, "other")
    assert target.get("other") == source.get("name")
    assert is_intact(target, msgspec.structs.replace(file, name="other"))


def test_no_object_appears_when_its_checksum_is_wrong(source: LocalPlace, file: StoredFile, tmp_path: Path) -> None:
    target = LocalPlace(tmp_path / "target")
    with pytest.raises(FormatError, match="source/name is damaged: its checksum is wrong"):
        copy_object(source, msgspec.structs.replace(file, xxh3=OTHER), target, "other")
    assert target.walk() == []
    assert not is_intact(source, msgspec.structs.replace(file, xxh3=OTHER))


@pytest.mark.parametrize("other", [{"xxh3": OTHER}, {"size_bytes": PIECE_BYTES}])
def test_an_object_is_refused_when_it_is_another(
    other: dict[str, str | int], source: LocalPlace, file: StoredFile, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match="source/name is damaged: size or checksum is wrong"):
        fetch(source, msgspec.structs.replace(file, **other), tmp_path / "fetched")
