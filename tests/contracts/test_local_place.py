"""A folder as a place: the contract of all places, and what disks and links alone can do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, LocalPlace
from pyspark_ckpt.state_store.blobs.base.capabilities import CanLink
from pyspark_ckpt.state_store.blobs.transfers import write_together
from pyspark_ckpt.state_store.errors import ConflictError, NotFoundError, StorageError
from tests.contracts.test_blob_places import HALF, BlobPlaceContract
from tests.faults.faulty_disk import FULL, READ_ONLY, Trouble, broken, nearly_full


class TestLocalPlace(BlobPlaceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> BlobPlace:
        return LocalPlace(tmp_path / "not" / "made" / "yet")

    def test_discard_unfinished_removes_leftovers_when_they_are_old(self, place: BlobPlace) -> None:
        place.put("sst/kept", b"x")
        place.put("state/0/1/kept", b"x")
        for folder in ("", "sst/", "state/0/1/"):
            (Path(place.url) / f"{folder}{HALF}").write_bytes(b"half")
            (Path(place.url) / f"{folder}.mine.tmp").write_text("of a user")
        assert place.discard_unfinished(3600) == 0
        assert place.find_unfinished(3600) == []
        left = [(blob.name, blob.size_bytes) for blob in place.find_unfinished(0)]
        assert left == [(HALF, 4), (f"sst/{HALF}", 4), (f"state/0/1/{HALF}", 4)]
        assert place.discard_unfinished(0) == 3
        assert [blob.name for blob in place.list("sst")] == ["sst/kept"]
        assert (Path(place.url) / "state/0/1/.mine.tmp").exists()

    def test_remove_empty_folders_removes_what_is_empty_below_it_alone(self, place: BlobPlace, tmp_path: Path) -> None:
        place.put("x/y/z/gone", b"x")
        place.delete("x/y/z/gone")
        root = Path(place.url)
        (root / ".hidden" / "empty").mkdir(parents=True)
        (root / "x" / ".temporary").touch()
        (tmp_path / "elsewhere" / "empty").mkdir(parents=True)
        (root / "link").symlink_to(tmp_path / "elsewhere")
        place.remove_empty_folders()
        left = {path.relative_to(root).as_posix() for path in root.rglob("*")}
        assert left >= {".hidden", ".hidden/empty", "link", "x", "x/.temporary"}
        assert "x/y" not in left
        assert (tmp_path / "elsewhere" / "empty").is_dir()
        (root / "x" / ".temporary").unlink()
        (root / "link").unlink()
        (root / ".hidden" / "empty").rmdir()
        (root / ".hidden").rmdir()
        place.remove_empty_folders()
        assert list(root.iterdir()) == []

    def test_an_object_that_is_shared_is_there_as_long_as_one_of_its_names(self, tmp_path: Path) -> None:
        source, target = LocalPlace(tmp_path / "source"), LocalPlace(tmp_path / "target")
        source.put("sst/a", b"1234567890")
        assert target.link_from(source, "sst/a", "sst/b")
        assert (tmp_path / "source/sst/a").samefile(tmp_path / "target/sst/b")
        with pytest.raises(ConflictError, match="sst/b already exists"):
            target.link_from(source, "sst/a", "sst/b")
        source.delete("sst/a")
        assert target.get("sst/b") == b"1234567890"
        with pytest.raises(NotFoundError, match="source/sst/a"):
            target.link_from(source, "sst/a", "sst/c")

    def test_objects_that_are_written_together_are_durable_behind_the_block(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place, synced, sync = LocalPlace(tmp_path / "place"), list[str](), os.fsync

        def noted(descriptor: int) -> None:
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name.split(".")[0])
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        place.put("sst/first", b"1")
        synced.clear()
        with write_together(place) as together:
            for name in ("a", "b"):
                with together.create(f"sst/{name}") as sink:
                    sink.write(b"2")
            assert isinstance(together, CanLink)
            together.link_from(place, "sst/first", "sst/c")
            assert [blob.name for blob in place.list("sst")] == ["sst/a", "sst/b", "sst/c", "sst/first"]
            assert "sst" not in synced
        assert len(synced) == 3
        assert synced[-1] == "sst"
        place.put("sst/d", b"3")
        assert synced[-1] == "sst"
        assert len(synced) == 5

    def test_an_error_of_the_disk_is_a_storage_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StorageError, match="file"):
            LocalPlace(tmp_path / "file" / "folder").put("a", b"x")

    @pytest.mark.parametrize("trouble", [FULL, READ_ONLY, nearly_full(3)], ids=lambda trouble: trouble.name)
    def test_a_disk_that_fails_is_a_storage_error(self, place: BlobPlace, trouble: Trouble, tmp_path: Path) -> None:
        place.put("sst/there", b"1234567890")
        (Path(place.url) / "sst" / HALF).write_bytes(b"half")
        writes: list[Callable[[], object]] = [
            lambda: place.put("a", b"1234567890"),
            lambda: place.put_if_absent("sst/a", b"1234567890"),
            lambda: place.download("sst/there", tmp_path / "copy"),
        ]
        if trouble is READ_ONLY:
            (Path(place.url) / "empty").mkdir()
            writes += [
                lambda: place.delete("sst/there"),
                lambda: place.discard_unfinished(0),
                place.remove_empty_folders,
            ]
        for write in writes:
            with pytest.raises(StorageError), broken(tmp_path, trouble):
                write()
        assert place.list() == []
        assert place.get("sst/there") == b"1234567890"
        place.put("a", b"1234567890")
