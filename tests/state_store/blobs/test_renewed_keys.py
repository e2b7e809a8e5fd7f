"""Keys of S3 that change in their file while places are used: the next request finds them, and it alone is repeated."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.blobs import BlobPlace, S3Settings, place_at
from pyspark_ckpt.state_store.errors import StorageError
from tests.conftest import MakeLab
from tests.faults.refusals import is_refused
from tests.labs.lab import expected
from tests.services.rotating_s3 import Gateway, gateway, rotating_server

THREADS = 16

__all__ = ["gateway", "rotating_server"]


def write_large(place: BlobPlace) -> None:
    with place.create("large") as sink:
        sink.write(random.Random(0).randbytes(20 << 20))


OPERATIONS: dict[str, Callable[[BlobPlace, Path], object]] = {
    "put_if_absent": lambda place, _: place.put_if_absent("new", b"new"),
    "put": lambda place, _: place.put("old", b"old"),
    "get": lambda place, _: place.get("old"),
    "list": lambda place, _: place.list(),
    "download": lambda place, folder: place.download("old", folder / "file"),
    "delete": lambda place, _: place.delete("old"),
    "create": lambda place, _: write_large(place),
    "now_s": lambda place, _: place.now_s(),  # type: ignore[attr-defined]
    "walk": lambda place, _: place.walk(),
    "copy_from": lambda place, _: place.copy_from(place, "old", 3, "copy"),  # type: ignore[attr-defined]
    "discard_unfinished": lambda place, _: place.discard_unfinished(60),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_succeeds_when_the_key_has_changed_in_its_file(
    operation: str, gateway: Gateway, tmp_path: Path
) -> None:
    place = gateway.place(f"operations/{operation}")
    place.put("old", b"old")
    gateway.rotate()
    OPERATIONS[operation](place, tmp_path)
    assert [blob.name for blob in place.list()] == {
        "put_if_absent": ["new", "old"],
        "delete": [],
        "copy_from": ["copy", "old"],
        "create": ["large", "old"],
    }.get(operation, ["old"])


def test_an_upload_in_parts_goes_on_when_the_key_changes_under_way(gateway: Gateway, tmp_path: Path) -> None:
    place, data = gateway.place("parts"), random.Random(1).randbytes(40 << 20)
    with place.create("large") as sink:
        sink.write(data[: 20 << 20])
        gateway.rotate()
        sink.write(data[20 << 20 :])
    place.download("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == data


def test_an_error_ends_the_request_until_the_key_is_corrected(gateway: Gateway) -> None:
    place = gateway.place("wrong")
    place.put("object", b"content")
    gateway.rotate(tell=False)
    for wrong in ("", "nobody", "noone"):
        if wrong:
            gateway.tell(wrong)
        with pytest.raises(StorageError, match="Correct the credentials"):
            place.get("object")
    gateway.tell()
    assert place.get("object") == b"content"


def test_a_file_of_keys_is_found_that_was_not_there_before(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.file.unlink()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    place = place_at("s3://bucket/absent", S3Settings(gateway.endpoint, "eu-west-1", "path"))
    with pytest.raises(StorageError, match=r"Give this process, on .*, credentials"):
        place.put("object", b"content")
    gateway.tell()
    place.put("object", b"content")
    assert place.get("object") == b"content"


def test_a_storm_of_refusals_makes_one_client(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    """As many threads, and as many places, as may be: those that wait use what one has found."""
    places = [gateway.place(f"storm/{number}") for number in range(THREADS)]
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda place: place.put("object", b"content"), places))
        first = {id(place.client) for place in places}  # type: ignore[attr-defined]
        assert len(first) == 1
        caplog.clear()
        gateway.rotate(tell=False)
        refused = list(threads.map(is_refused, places * 10))
        assert all(refused)
        assert {id(place.client) for place in places} == first  # type: ignore[attr-defined]
        assert "has refused the credentials" not in caplog.text
        gateway.tell()
        assert set(threads.map(lambda place: place.get("object"), places * 10)) == {b"content"}
        assert len({id(place.client) for place in places} | first) == 2  # type: ignore[attr-defined]
        assert caplog.text.count("has refused the credentials") == 1
    assert gateway.place("storm/0").get("object") == b"content"


def test_a_query_and_a_reader_of_its_state_go_on_when_the_key_changes(gateway: Gateway, make_lab: MakeLab) -> None:
    lab = make_lab()
    place: dict[str, Any] = {
        "checkpoint_root": "s3://bucket/query",
        "state_dir": "s3://bucket/query/state/0/3",
        "options": gateway.options,
    }
    handle, commit_id = lab.open(**place), None
    for version in range(4):
        (commit_id,) = lab.grow(handle, 1, version, commit_id)
        gateway.rotate()
    lab.server.call("close", handle=handle)
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(**place), 4, commit_id).rows == expected(4)
