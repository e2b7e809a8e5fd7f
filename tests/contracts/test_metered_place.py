"""A place behind a meter: it keeps the contract, counts requests, and hides no ability of the place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace, LocalPlace, MeteredPlace, Traffic
from pyspark_ckpt.state_store.blobs.transfers import (
    StoredFile,
    copy_object,
    describe,
    is_copied_by_service,
    share_object,
    write_together,
)
from tests.contracts.test_blob_places import BlobPlaceContract
from tests.services.s3_server import S3Service, place_of


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
