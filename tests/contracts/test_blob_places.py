"""What every place for blobs must do. A new place subclasses ``BlobPlaceContract`` and says how to make one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceClock, ask_time
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError, NotFoundError
from tests.labs.memory_place import MemoryService

WRITERS = 16
BIG = bytes(range(256)) * 20_000
HALF = f".a.{'0' * 32}.tmp"
"""The name of a file that a writer has left half-written."""


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

    def test_walk_finds_all_objects_when_there_are_folders_in_folders(self, place: BlobPlace) -> None:
        assert place.walk() == []
        for name in ("b", "x/a", "x/y/z/c", "xy/d"):
            place.put(name, name.encode())
        assert [blob.name for blob in place.walk()] == ["b", "x/a", "x/y/z/c", "xy/d"]
        assert [(blob.name, blob.size_bytes) for blob in place.walk("x")] == [("x/a", 3), ("x/y/z/c", 7)]
        assert place.walk("never-made") == []

    def test_delete_removes_and_is_silent_when_repeated(self, place: BlobPlace) -> None:
        place.put("a", b"x")
        place.delete("a")
        place.delete("a")
        assert place.list() == []

    def test_remove_empty_folders_leaves_every_object(self, place: BlobPlace) -> None:
        place.remove_empty_folders()
        for name in ("kept", "x/kept", "x/y/z/gone", "gone/too"):
            place.put(name, b"x")
        place.delete("x/y/z/gone")
        place.delete("gone/too")
        for _ in range(2):
            place.remove_empty_folders()
            assert [blob.name for blob in place.walk()] == ["kept", "x/kept"]
        place.put("x/y/z/again", b"x")
        assert place.get("x/y/z/again") == b"x"

    def test_its_time_is_that_with_which_it_stamps_objects_whatever_the_host_says(
        self, place: BlobPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = time.time
        for minutes in (-60, 11):
            with monkeypatch.context() as patched:
                patched.setattr(time, "time", lambda ahead_s=60 * minutes: here() + ahead_s)
                before = ask_time(place)
                place.put(f"a{minutes}", b"x")
                (written,) = place.list(prefix=f"a{minutes}")
                assert before - 2 <= written.modified_s <= ask_time(place) + 2
        assert [blob.name for blob in place.walk()] == ["a-60", "a11"], "asking leaves nothing"

    def test_its_clock_asks_again_when_the_clock_that_carries_it_on_was_set(self, place: BlobPlace) -> None:
        ahead_s = [0.0]
        clock = PlaceClock(place, lambda: time.monotonic() + ahead_s[0])
        for each in (0.0, 660.0, -3600.0):
            ahead_s[0] = each
            place.put("a", b"x")
            (written,) = place.list(prefix="a")
            assert -2 <= clock.now_s() - written.modified_s <= 60, "a machine may be busy"

    def test_a_name_cannot_leave_the_place(self, place: BlobPlace) -> None:
        for name in ("../a", "a/../../b", "/etc/passwd", "", "a//b"):
            with pytest.raises(InvalidInputError):
                place.put(name, b"x")


class TestMemoryPlace(BlobPlaceContract):
    @pytest.fixture
    def place(self) -> BlobPlace:
        return MemoryService(time.time).place("memory:/place")
