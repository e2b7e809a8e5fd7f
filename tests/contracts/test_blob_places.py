"""What every place for blobs must do. A new place subclasses ``BlobPlaceContract`` and says how to make one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, LocalPlace, place_at
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError, NotFoundError, StorageError

WRITERS = 16
BIG = bytes(range(256)) * 20_000


class BlobPlaceContract:
    """Inherit, and provide the fixture ``place``: an empty place."""

    def test_get_returns_what_was_put_when_sizes_differ(self, place: BlobPlace) -> None:
        for name, data in (("empty", b""), ("small", b"x"), ("sst/big", BIG)):
            place.put(name, data)
            assert place.get(name) == data

    def test_get_returns_a_range_when_asked(self, place: BlobPlace) -> None:
        place.put("a", b"0123456789")
        assert place.get("a", 3) == b"3456789"
        assert place.get("a", 3, 5) == b"34"
        assert place.get("a", 8, 100) == b"89"

    def test_get_and_download_name_the_object_when_it_is_missing(self, place: BlobPlace, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match="nothing-here"):
            place.get("nothing-here")
        with pytest.raises(NotFoundError, match="nothing-here"):
            place.download("nothing-here", tmp_path / "target")

    def test_put_replaces_when_the_object_exists(self, place: BlobPlace) -> None:
        place.put("a", b"old and longer")
        place.put("a", b"new")
        assert place.get("a") == b"new"

    def test_put_if_absent_keeps_the_first_when_repeated(self, place: BlobPlace) -> None:
        assert place.put_if_absent("a", b"first")
        assert not place.put_if_absent("a", b"second")
        assert place.get("a") == b"first"

    def test_put_if_absent_has_one_winner_when_many_race(self, place: BlobPlace) -> None:
        for attempt in range(10):
            name, start = f"race-{attempt}", threading.Barrier(WRITERS)
            won: list[int] = []

            def write(number: int, name: str = name, start: threading.Barrier = start, won: list[int] = won) -> None:
                start.wait()
                if place.put_if_absent(name, b"%d" % number):
                    won.append(number)

            threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(won) == 1
            assert place.get(name) == b"%d" % won[0]

    def test_create_shows_nothing_when_not_finished(self, place: BlobPlace) -> None:
        with place.create("a") as sink:
            sink.write(b"half")
            assert place.list() == []
            sink.write(b" and half")
        assert place.get("a") == b"half and half"

    def test_create_leaves_nothing_when_the_writer_fails(self, place: BlobPlace) -> None:
        def fail() -> None:
            with place.create("a") as sink:
                sink.write(b"half")
                raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            fail()
        assert place.list() == []
        assert place.put_if_absent("a", b"whole")

    def test_create_conflicts_when_the_object_exists(self, place: BlobPlace) -> None:
        place.put("a", b"first")
        with pytest.raises(ConflictError), place.create("a") as sink:
            sink.write(b"second")
        assert place.get("a") == b"first"

    def test_download_copies_and_counts_when_the_object_is_big(self, place: BlobPlace, tmp_path: Path) -> None:
        with place.create("sst/big") as sink:
            for offset in range(0, len(BIG), 100_000):
                sink.write(BIG[offset : offset + 100_000])
        assert place.download("sst/big", tmp_path / "target") == len(BIG)
        assert (tmp_path / "target").read_bytes() == BIG

    def test_list_is_complete_ordered_and_filtered_when_there_are_folders(self, place: BlobPlace) -> None:
        before = time.time()
        for name in ("b2", "a1", "b1", "sst/b3", "c"):
            place.put(name, name.encode())
        assert [blob.name for blob in place.list()] == ["a1", "b1", "b2", "c"]
        assert [blob.name for blob in place.list(prefix="b")] == ["b1", "b2"]
        assert [blob.name for blob in place.list(start="b2")] == ["b2", "c"]
        (only,) = place.list("sst")
        assert (only.name, only.size_bytes) == ("sst/b3", 6)
        assert before - 60 < only.modified_s < time.time() + 60

    def test_list_is_empty_when_the_folder_is_missing(self, place: BlobPlace) -> None:
        assert place.list() == []
        assert place.list("never-made") == []

    def test_delete_removes_and_is_silent_when_repeated(self, place: BlobPlace) -> None:
        place.put("a", b"x")
        place.delete("a")
        place.delete("a")
        assert place.list() == []

    def test_a_name_cannot_leave_the_place(self, place: BlobPlace) -> None:
        for name in ("../a", "a/../../b", "/etc/passwd", "", "a//b"):
            with pytest.raises(InvalidInputError):
                place.put(name, b"x")


class TestLocalPlace(BlobPlaceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> BlobPlace:
        return LocalPlace(tmp_path / "not" / "made" / "yet")

    def test_discard_unfinished_removes_leftovers_when_they_are_old(self, place: BlobPlace) -> None:
        place.put("sst/kept", b"x")
        for folder in ("", "sst/"):
            (Path(place.url) / f"{folder}.a.123.tmp").write_bytes(b"half")
        assert place.discard_unfinished(3600) == 0
        assert place.discard_unfinished(0) == 2
        assert [blob.name for blob in place.list("sst")] == ["sst/kept"]

    def test_an_error_of_the_disk_is_a_storage_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StorageError, match="file"):
            LocalPlace(tmp_path / "file" / "folder").put("a", b"x")


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file:///{}"])
def test_place_at_accepts_paths_and_file_uris(tmp_path: Path, form: str) -> None:
    place_at(form.format(tmp_path) + "/x").put("a", b"1")
    assert (tmp_path / "x" / "a").read_bytes() == b"1"


def test_place_at_decodes_a_uri_and_not_a_path(tmp_path: Path) -> None:
    assert place_at(f"file:{tmp_path}/a%20b").url == f"{tmp_path}/a b"
    assert place_at(f"{tmp_path}/a%20b").url == f"{tmp_path}/a%20b"


@pytest.mark.parametrize("uri", ["s3a://bucket/x", "hdfs://host/x", "file://host/x", "relative/x", "file:relative"])
def test_place_at_names_what_it_cannot_use(uri: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        place_at(uri)
    assert uri.partition(":")[0] in str(caught.value)
