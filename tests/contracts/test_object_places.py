"""Google Cloud Storage and Azure as places."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, place_at
from pyspark_ckpt.state_store.blobs.object_store import azure as azure_module
from pyspark_ckpt.state_store.blobs.object_store import gcs as gcs_module
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, copy_object, is_copied_by_service
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError, StorageError
from tests.contracts.test_blob_places import BIG, WRITERS, BlobPlaceContract
from tests.services.cloud_services import CloudService

LARGE = BIG * 5  # 25 MB: four parts
RACES = 100
ODD_NAMES = (
    *(
        "a b",
        "a+b",
        "a%20b",
        "a%b",
        "a#b",
        "a?b=c&d",
        ".hidden",
        "..dots",
        "über/日本/😀",
        "a'b\"c",
        "a=b;c,d",
        "~a!@$^()",
    ),
    *("x/.y/z", "[a]{b}*", "very/" * 20 + "deep"),
)


class ObjectPlaceContract(BlobPlaceContract):
    """What both do beyond the contract."""

    def test_one_of_16_writers_wins_each_of_100_names(self, place: BlobPlace) -> None:
        won: list[tuple[str, int]] = []
        start = threading.Barrier(WRITERS)

        def write(number: int) -> None:
            for race in range(RACES):
                start.wait()
                if place.put_if_absent(f"race-{race:03d}", b"%d" % number):
                    won.append((f"race-{race:03d}", number))

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
        assert sorted(name for name, _ in won) == [f"race-{race:03d}" for race in range(RACES)]
        assert {name: b"%d" % number for name, number in won} == {
            blob.name: place.get(blob.name) for blob in place.list()
        }

    def test_one_of_several_writers_of_a_large_object_wins(self, place: BlobPlace) -> None:
        start = threading.Barrier(4)

        def write(number: int) -> bool:
            start.wait()
            try:
                with place.create("large") as sink:
                    for _ in range(4):
                        sink.write(bytes([number]) * (5 << 20))
            except ConflictError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(write, range(4)))
        assert won.count(True) == 1
        assert place.get("large") == bytes([won.index(True)]) * (20 << 20)

    def test_create_sends_parts_and_conflicts_when_the_object_is_large(self, place: BlobPlace, tmp_path: Path) -> None:
        with place.create("sst/large") as sink:
            sink.write(LARGE)
            assert place.walk() == []
        assert place.download("sst/large", tmp_path / "target") == len(LARGE)
        assert (tmp_path / "target").read_bytes() == LARGE
        with pytest.raises(ConflictError, match="sst/large"), place.create("sst/large") as sink:
            sink.write(LARGE[::-1])
        assert place.get("sst/large", len(LARGE) - 3) == LARGE[-3:]
        assert place.get("sst/large") == LARGE
        assert place.get("sst/large", 5, 20 << 20) == LARGE[5 : 20 << 20]

    def test_create_writes_all_when_the_size_is_that_of_whole_parts(self, place: BlobPlace) -> None:
        for size in (8 << 20, 16 << 20, (16 << 20) + 1):
            with place.create(f"of-{size}") as sink:
                sink.write(memoryview(LARGE)[:size])
            assert place.get(f"of-{size}") == LARGE[:size]

    def test_create_of_many_parts_leaves_nothing_when_the_writer_fails(self, place: BlobPlace) -> None:
        def fail() -> None:
            with place.create("a") as sink:
                sink.write(LARGE)
                raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            fail()
        assert place.walk() == []
        # Not put_if_absent: Azurite takes blocks that were never joined for a blob, and the service does not.
        with place.create("a") as sink:
            sink.write(LARGE)
        assert place.get("a") == LARGE

    def test_names_are_kept_as_they_are(self, place: BlobPlace, tmp_path: Path) -> None:
        for number, name in enumerate(ODD_NAMES):
            assert place.put_if_absent(name, b"%d" % number), name
            assert not place.put_if_absent(name, b"again"), name
        assert [blob.name for blob in place.walk()] == sorted(ODD_NAMES)
        for number, name in enumerate(ODD_NAMES):
            assert place.get(name) == b"%d" % number
            assert place.download(name, tmp_path / "target") == len(b"%d" % number)
            folder, _, last = name.rpartition("/")
            assert name in [blob.name for blob in place.list(folder, prefix=last[:2])]
            place.delete(name)
        assert place.walk() == []

    def test_a_place_whose_folder_has_an_odd_name_is_that_folder(self, cloud_service: CloudService) -> None:
        for folder in ("a b%20+#?é", "x=1/y=2"):
            root = cloud_service.new_folder()
            place = place_at(f"{root}/{folder}")
            place.put("a", b"1")
            assert [blob.name for blob in place_at(root).walk()] == [f"{folder}/a"]
            assert place_at(place.url).get("a") == b"1"

    def test_a_folder_is_not_one_whose_name_it_begins(self, cloud_service: CloudService) -> None:
        root = cloud_service.new_folder()
        one, other = place_at(f"{root}/state"), place_at(f"{root}/state2")
        one.put("x/a", b"1")
        other.put("x2/a", b"2")
        place_at(root).put("state", b"an object of the folder's name")
        assert [blob.name for blob in one.walk()] == ["x/a"]
        assert [blob.name for blob in other.walk("x")] == []
        assert [blob.name for blob in other.list("x2")] == ["x2/a"]
        assert [blob.name for blob in place_at(root).list()] == ["state"]

    def test_marks_of_folders_are_not_listed(self, place: BlobPlace, cloud_service: CloudService) -> None:
        place.put("x/a", b"1")
        add_folder(cloud_service, place.url, "x")
        add_folder(cloud_service, place.url, "empty/one")
        assert [blob.name for blob in place.walk()] == ["x/a"]
        assert place.list() == []
        assert [blob.name for blob in place.list("x")] == ["x/a"]
        place.remove_empty_folders()
        assert place.get("x/a") == b"1"

    def test_all_pages_are_listed_when_there_are_many_objects(
        self, place: BlobPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gcs_module, "LISTED", 40)
        monkeypatch.setattr(azure_module, "LISTED", 40)
        assert_many_are_listed(place, 210)

    @pytest.mark.matrix
    def test_thousands_of_objects_are_listed_and_deleted(self, place: BlobPlace) -> None:
        assert_many_are_listed(place, 5100)

    def test_the_service_copies_within_it(self, place: BlobPlace, cloud_service: CloudService) -> None:
        other = place_at(cloud_service.new_folder())
        place.put("sst/a b", LARGE)
        assert is_copied_by_service(place, other)
        copy_object(place, StoredFile("sst/a b", len(LARGE), "not looked at"), other, "new/ä+%")
        assert other.get("new/ä+%") == LARGE

    def test_a_reader_sees_one_version_of_a_large_object_that_is_replaced(
        self, place: BlobPlace, tmp_path: Path
    ) -> None:
        size = 24 << 20
        place.put("a", bytes(size))
        stop = threading.Event()

        def replace() -> None:
            for number in range(1, 1000):
                if stop.is_set():
                    return
                place.put("a", bytes([number % 255]) * size)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(replace)
            for _ in range(5):
                with suppress(StorageError):  # it was replaced while it was read
                    place.download("a", tmp_path / "target")
                    assert len(set((tmp_path / "target").read_bytes())) == 1
            stop.set()
            writing.result()


class TestGcsPlace(ObjectPlaceContract):
    @pytest.fixture
    def cloud_service(self, gcs: CloudService) -> CloudService:
        return gcs

    @pytest.fixture
    def place(self, gcs: CloudService) -> BlobPlace:
        return place_at(gcs.new_folder())


class TestAzurePlace(ObjectPlaceContract):
    @pytest.fixture
    def cloud_service(self, azure: CloudService) -> CloudService:
        return azure

    @pytest.fixture
    def place(self, azure: CloudService) -> BlobPlace:
        return place_at(azure.new_folder())

    @pytest.mark.parametrize("name", ["a\\b", "a.", "x./b", "x/..."])
    def test_a_name_that_azure_would_change_is_refused(self, place: BlobPlace, name: str) -> None:
        with pytest.raises(InvalidInputError, match="Azure"):
            place.put(name, b"x")

    def test_remove_empty_folders_removes_those_that_hold_nothing(self, place: BlobPlace, azure: CloudService) -> None:
        place.put("x/y/kept", b"1")
        for folder in ("x", "x/y", "gone", "gone/too", ".hidden", ".hidden/empty"):
            add_folder(azure, place.url, folder)
        place.remove_empty_folders()
        lead = place.url.removeprefix(azure.root).strip("/")
        left = {blob.name.removeprefix(f"{lead}/") for blob in azure.client.list_blobs(name_starts_with=lead)}
        assert left == {"x", "x/y", "x/y/kept", ".hidden", ".hidden/empty"}


def assert_many_are_listed(place: BlobPlace, count: int) -> None:
    """Write many objects, list them from several names on, and delete half of them."""
    names = [f"{number:04d}" for number in range(count)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: place.put(f"many/{name}", b""), names))
        place.put("other", b"")
        assert [blob.name for blob in place.list("many")] == [f"many/{name}" for name in names]
        assert [blob.name for blob in place.list("many", start=names[-7])] == [f"many/{name}" for name in names[-7:]]
        assert [blob.name for blob in place.list()] == ["other"]
        assert len(place.walk()) == count + 1
        list(pool.map(lambda name: place.delete(f"many/{name}"), names[: count // 2]))
    assert [blob.name for blob in place.list("many")] == [f"many/{name}" for name in names[count // 2 :]]


def add_folder(service: CloudService, url: str, name: str) -> None:
    """Add what Hadoop's connector or a hierarchical namespace shows as a folder."""
    key = f"{url.removeprefix(service.root).strip('/')}/{name}"
    if url.startswith("gs:"):
        service.client.blob(f"{key}/").upload_from_string(b"")
    else:
        service.client.upload_blob(key, b"", metadata={"hdi_isfolder": "true"}, overwrite=True)
