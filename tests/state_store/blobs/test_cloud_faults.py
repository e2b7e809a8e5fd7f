"""State in Google Cloud Storage and Azure under a faulty network: never a wrong object, and clear errors."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, copy_object
from pyspark_ckpt.state_store.errors import StorageError
from tests.faults.faulty_s3 import Faults, assert_works, proxy
from tests.faults.outages import KINDS, Wire, wire
from tests.services.cloud_services import CloudService, far

pytestmark = pytest.mark.usefixtures("no_machine")

FAULTS = (
    "slow_down",
    "no_answer",
    "cut",
    "refused",
    "late",
    "page_200",
    "page_404",
    "empty_200",
    "json_200",
    "garbled",
)
BIG = os.urandom(20 << 20)
MIDDLE = 6 << 20
"""Of an object that is one request."""


def large_of(service: CloudService) -> bytes:
    """An object in parts, if the service takes a part again: see ``tests/services/cloud_services.py``."""
    return BIG[:MIDDLE] if service.root.startswith("gs:") else BIG


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", FAULTS)
def test_a_place_does_what_it_says_when_one_kind_of_fault_is_met(
    kind: str, cloud: CloudService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other request meets the fault."""
    faults = Faults(lambda _method, number: kind if number % 2 else None)
    with proxy(cloud.endpoint, faults) as endpoint:
        assert_works(far(cloud, endpoint, monkeypatch), large_of(cloud), tmp_path)
    assert faults.seen[kind] > 3


@pytest.mark.in_turn
def test_objects_are_right_when_requests_meet_random_faults(
    cloud: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(7)
    faults = Faults(lambda _method, _number: draw.choice(FAULTS) if draw.random() < 0.3 else None)
    with proxy(cloud.endpoint, faults) as endpoint:
        place = far(cloud, endpoint, monkeypatch)
        for number in range(30):
            assert place.put_if_absent(f"{number:02d}", b"%d" % number)
            assert not place.put_if_absent(f"{number:02d}", b"other")
        with place.create("large") as sink:
            sink.write(large_of(cloud))
        assert place.get("large") == large_of(cloud)
        assert [place.get(blob.name) for blob in place.list()][:-1] == [b"%d" % number for number in range(30)]


@pytest.fixture
def cut(cloud: CloudService) -> Iterator[Wire]:
    there = urlsplit(cloud.endpoint)
    with wire((str(there.hostname), int(there.port or 0))) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_an_upload_goes_on_when_its_connection_is_cut_in_the_middle(
    kind: str, azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = urlsplit(azure.endpoint)
    with wire((str(there.hostname), int(there.port or 0))) as cut:
        place = far(azure, f"http://127.0.0.1:{cut.port}", monkeypatch, 12)
        _write_through(place, cut, kind)


def _write_through(place: BlobPlace, cut: Wire, kind: str) -> None:
    with place.create("large") as sink:
        sink.write(BIG[: 9 << 20])
        with cut.outage(kind):
            sink.write(BIG[9 << 20 :])
            time.sleep(0.2)
    assert place.get("large") == BIG


def test_nothing_half_is_left_when_a_service_stays_away(
    cloud: CloudService, cut: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = far(cloud, f"http://127.0.0.1:{cut.port}", monkeypatch, 1.5)
    place.put("there", BIG)

    def write() -> None:
        with place.create("large") as sink:
            sink.write(BIG[: 9 << 20])
            with cut.outage("refused"):
                sink.write(BIG)
                raise TimeoutError("the writer has waited long enough")

    with pytest.raises((StorageError, TimeoutError)):
        write()
    with cut.outage("reset"), pytest.raises(StorageError, match=r"tried for [0-9]+ s \(placeTimeout is 1.5 s\)") as why:
        place.put_if_absent("a", b"x")
    assert why.value.outcome == "unknown"
    assert why.value.retryable
    with cut.outage("refused"), pytest.raises(StorageError, match="placeTimeout"):
        place.download("there", tmp_path / "copy")
    assert [blob.name for blob in place.walk()] == ["there"]


def test_a_network_that_hides_headers_does_not_mix_versions(
    cloud: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the tag of a version, the parts of an object could be those of several."""
    with proxy(cloud.endpoint, Faults(lambda method, _number: "untagged" if method == "GET" else None)) as endpoint:
        place = far(cloud, endpoint, monkeypatch, 0.5)
        place.put("a", BIG)
        with pytest.raises(StorageError, match=r"generation|ETag"):
            place.get("a")


def test_many_folders_are_removed_when_each_request_is_slow(
    azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take longer than one request may."""
    with proxy(azure.endpoint, Faults(before=lambda _method, _path: time.sleep(0.12))) as endpoint:
        place = far(azure, endpoint, monkeypatch, 1.2)
        for number in range(25):
            key = f"{place.url.removeprefix(azure.root).strip('/')}/folder-{number}"
            azure.client.upload_blob(key, b"", metadata={"hdi_isfolder": "true"})
        place.remove_empty_folders()
    prefix = place.url.removeprefix(azure.root).strip("/")
    assert list(azure.client.list_blobs(name_starts_with=prefix)) == []


def test_a_copy_that_never_ends_is_given_up(azure: CloudService, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(azure.endpoint, Faults(lambda _method, _number: "pending")) as endpoint:
        place = far(azure, endpoint, monkeypatch, 1.5)
        place.put("a", b"x")
        with pytest.raises(StorageError, match="the copy is still pending") as caught:
            copy_object(place, StoredFile("a", 1, "not looked at"), place, "b")
    assert caught.value.retryable
