"""What every place for blobs must do. A new place subclasses ``BlobPlaceContract`` and says how to make one."""

from __future__ import annotations

import os
import stat
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import xxhash
from botocore.client import BaseClient
from botocore.exceptions import ReadTimeoutError

from pyspark_ckpt.state_store.blobs import (
    BlobPlace,
    LocalPlace,
    MeteredPlace,
    RetryPolicy,
    S3Settings,
    Traffic,
    place_at,
    with_retries,
)
from pyspark_ckpt.state_store.blobs.base.capabilities import CanLink
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceClock, ask_time
from pyspark_ckpt.state_store.blobs.s3.place import S3Place
from pyspark_ckpt.state_store.blobs.transfers import (
    StoredFile,
    copy_object,
    describe,
    is_copied_by_service,
    share_object,
    write_together,
)
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError, NotFoundError, StorageError
from tests.faults import outages
from tests.faults.faulty_disk import FULL, READ_ONLY, Trouble, broken, nearly_full
from tests.faults.faulty_place import FaultyPlace, Link, Network
from tests.labs.memory_place import MemoryService
from tests.services.s3_server import S3Service

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


class TestMeteredPlace(BlobPlaceContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> BlobPlace:
        return MeteredPlace(LocalPlace(tmp_path), Traffic())

    def test_requests_and_bytes_are_counted_when_they_are_made(self, tmp_path: Path) -> None:
        traffic = Traffic()
        place = MeteredPlace(LocalPlace(tmp_path / "place"), traffic)
        with place.create("a") as sink:
            sink.write(b"12345")
        place.put("b", b"123")
        place.put_if_absent("c", b"1")
        place.get("a", 1, 3)
        place.download("b", tmp_path / "local")
        place.list()
        place.discard_unfinished(0)
        place.delete("b")
        counted = {"write_requests": 3, "read_requests": 2, "list_requests": 2, "delete_requests": 1}
        assert traffic.take() == {**counted, "uploaded_bytes": 9, "downloaded_bytes": 5}
        assert set(traffic.take().values()) == {0}

    def test_what_the_place_can_is_not_lost_behind_the_meter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        traffic, syncs, sync = Traffic(), list[int](), os.fsync
        metered = MeteredPlace(LocalPlace(tmp_path / "place"), traffic)
        metered.put("sst/first", b"1")

        def noted(descriptor: int) -> None:
            syncs.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        with write_together(metered) as together:
            for number in range(20):
                with together.create(f"sst/{number}") as sink:
                    sink.write(b"2")
            share_object(metered, describe("sst/first", tmp_path / "place/sst/first"), together, "sst/shared")
        assert syncs.count(stat.S_IFREG) == 20
        assert syncs.count(stat.S_IFDIR) == 1, "of the folder, once for all objects"
        assert (tmp_path / "place/sst/first").samefile(tmp_path / "place/sst/shared")
        assert traffic.take()["write_requests"] == 22

    def test_a_service_copies_behind_the_meter(self, s3: S3Service) -> None:
        traffic = Traffic()
        place, bare = MeteredPlace(place_of(s3), traffic), place_of(s3)
        place.put("a", b"12345")
        assert is_copied_by_service(bare, place)
        assert is_copied_by_service(place, place)
        assert not is_copied_by_service(LocalPlace(Path("/elsewhere")), place)
        traffic.take()
        copy_object(place, StoredFile("a", 5, xxhash.xxh3_128_hexdigest(b"12345")), place, "b")
        assert place.get("b") == b"12345"
        counted = {name: number for name, number in traffic.take().items() if number}
        assert counted == {"write_requests": 1, "read_requests": 1, "downloaded_bytes": 5}


class TestMemoryPlace(BlobPlaceContract):
    @pytest.fixture
    def place(self) -> BlobPlace:
        return MemoryService(time.time).place("memory:/place")


class TestFaultyPlaceInCalm(BlobPlaceContract):
    @pytest.fixture
    def place(self) -> BlobPlace:
        return FaultyPlace(MemoryService(time.time).place("memory:/place"), Link(Network("contract"), "A"))


class TestS3Place(BlobPlaceContract):
    @pytest.fixture
    def place(self, s3: S3Service) -> BlobPlace:
        return place_of(s3)

    def test_create_sends_parts_and_conflicts_when_the_object_is_large(self, place: BlobPlace, tmp_path: Path) -> None:
        data = BIG * 5  # 25 MB: four parts
        with place.create("sst/large") as sink:
            sink.write(data)
        assert place.download("sst/large", tmp_path / "target") == len(data)
        assert (tmp_path / "target").read_bytes() == data
        with pytest.raises(ConflictError, match="sst/large"), place.create("sst/large") as sink:
            sink.write(data[::-1])
        assert place.get("sst/large", len(data) - 3) == data[-3:]
        assert place.discard_unfinished(0) == 0, "the conflict has left no parts"

    def test_create_of_many_parts_leaves_nothing_when_the_writer_fails(self, place: BlobPlace) -> None:
        def fail() -> None:
            with place.create("a") as sink:
                sink.write(BIG * 5)
                raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            fail()
        assert place.list() == []
        assert place.discard_unfinished(0) == 0

    def test_discard_unfinished_aborts_uploads_when_they_are_old(self, place: BlobPlace, s3: S3Service) -> None:
        key = place.url.removeprefix(f"s3://{s3.bucket}/") + "/sst/half"
        s3.client.create_multipart_upload(Bucket=s3.bucket, Key=key)
        assert place.discard_unfinished(3600) == 0
        assert place.find_unfinished(3600) == []
        assert [(blob.name, blob.size_bytes) for blob in place.find_unfinished(0)] == [("sst/half", 0)]
        assert place.discard_unfinished(0) == 1
        assert place.discard_unfinished(0) == 0

    def test_discard_unfinished_spares_an_upload_whose_parts_still_come(
        self, place: BlobPlace, s3: S3Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In S3 the time when an upload was begun stays; that of the test's service moves on with its parts."""
        original = BaseClient._make_api_call

        def call(client: BaseClient, name: str, arguments: Any) -> Any:  # noqa: ANN401
            answer = original(client, name, arguments)
            for upload in answer.get("Uploads", ()):
                upload["Initiated"] -= timedelta(days=1)
            return answer

        target = {"Bucket": s3.bucket, "Key": place.url.removeprefix(f"s3://{s3.bucket}/") + "/sst/half"}
        target["UploadId"] = s3.client.create_multipart_upload(**target)["UploadId"]
        s3.client.upload_part(**target, PartNumber=1, Body=b"of another process")
        monkeypatch.setattr(BaseClient, "_make_api_call", call)
        assert place.discard_unfinished(3600) == 0
        assert place.discard_unfinished(0) == 1

    def test_discard_unfinished_spares_what_this_process_writes(self, place: BlobPlace) -> None:
        with place.create("large") as sink:
            sink.write(BIG * 5)
            assert place.discard_unfinished(0) == 0
        assert place.get("large", 0, 3) == BIG[:3]

    def test_list_pages_when_there_are_many_objects(self, place: BlobPlace) -> None:
        names = [f"{number:04d}" for number in range(1100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: place.put(name, b""), names))
        assert [blob.name for blob in place.list()] == names
        assert [blob.name for blob in place.list(start="1050")] == names[1050:]

    def test_a_write_is_its_own_when_its_answer_was_lost(
        self, place: BlobPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The service has the object and the client is told nothing: what it finds there is its own."""
        lose_answers(monkeypatch, "PutObject", times=1)
        assert place.put_if_absent("a", b"once")
        assert not place.put_if_absent("a", b"twice")
        lose_answers(monkeypatch, "CompleteMultipartUpload", times=1)
        with place.create("large") as sink:
            sink.write(BIG * 3)
        assert place.get("a") == b"once"
        assert place.get("large", 0, 4) == BIG[:4]

    def test_a_write_that_did_not_land_is_repeated_when_there_is_no_answer(
        self, place: BlobPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lose_answers(monkeypatch, "PutObject", times=3, before_it_happens=True)
        assert place.put_if_absent("a", b"x")
        assert place.get("a") == b"x"

    def test_a_write_that_did_not_land_is_unknown_when_there_is_no_answer(
        self, place: BlobPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lose_answers(monkeypatch, "PutObject", times=1, before_it_happens=True)
        with pytest.raises(StorageError, match=r"write s3://.*/a:") as caught:
            with_retries(place, RetryPolicy(0)).put_if_absent("a", b"x")
        assert caught.value.outcome == "unknown"
        assert place.put_if_absent("a", b"x"), "a repeat succeeds"

    def test_a_bucket_that_is_missing_is_named(self, s3: S3Service) -> None:
        place = place_at("s3a://no-such-bucket/x", S3Settings(endpoint=s3.endpoint, addressing="path"))
        with pytest.raises(StorageError, match="s3a://no-such-bucket/x") as caught:
            place.list()
        assert "Create the bucket" in caught.value.hint

    def test_wrong_credentials_are_not_shown(self, s3: S3Service, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
        place = place_at(f"s3://{s3.bucket}/x", S3Settings(endpoint=s3.endpoint, region="us-west-2"))
        with pytest.raises(StorageError) as caught:
            place.put("a", b"x")
        assert "wrong-and-secret" not in str(caught.value) + caught.value.hint
        assert "boto3's own chain" in caught.value.hint


def place_of(service: S3Service) -> BlobPlace:
    settings = S3Settings(endpoint=service.endpoint, addressing="path")
    return place_at(f"s3://{service.bucket}/{uuid.uuid4().hex}/state", settings)


def lose_answers(
    monkeypatch: pytest.MonkeyPatch, operation: str, *, times: int, before_it_happens: bool = False
) -> None:
    """Let the client of S3 hear nothing of its next requests."""
    outages.lose_answers(
        monkeypatch,
        BaseClient,
        "_make_api_call",
        lambda client: ReadTimeoutError(endpoint_url=client.meta.endpoint_url),
        times=times,
        before_it_happens=before_it_happens,
        counts=lambda name, _: name == operation,
    )


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file:///{}"])
def test_place_at_accepts_paths_and_file_uris(tmp_path: Path, form: str) -> None:
    place_at(form.format(tmp_path) + "/x").put("a", b"1")
    assert (tmp_path / "x" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_percent_sign_is_part_of_a_name_as_spark_has_it(tmp_path: Path, form: str) -> None:
    assert place_at(form.format(tmp_path) + "/10%3A00 %").url == f"{tmp_path}/10%3A00 %"


@pytest.mark.parametrize(
    "uri",
    [
        "s3:///x",
        "s3a://key:hunter2@bucket/x",
        "gcs://bucket/x",
        "webhdfs://host/x",
        "file://host/x",
        "relative/x",
        "file:relative",
    ],
)
def test_place_at_names_what_it_cannot_use(uri: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        place_at(uri)
    assert uri.partition(":")[0] in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://bucket/a%2520b", "s3://bucket/50%/ü", "s3://bucket"])
def test_the_url_of_a_place_in_s3_names_the_same_place(uri: str) -> None:
    place = place_at(uri)
    assert isinstance(place, S3Place)
    assert (place.url, place.key("x")) == (uri, f"{uri}/x".removeprefix("s3://bucket/"))


def test_a_path_of_s3a_is_the_name_itself() -> None:
    assert place_at("s3a://bucket/a%20b").url == "s3a://bucket/a%20b"
