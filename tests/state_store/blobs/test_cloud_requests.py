"""What places in Google Cloud Storage and Azure ask of their service, in how much memory, on how many connections."""

from __future__ import annotations

import os
import re
import threading
import time
import tracemalloc
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest
from azure.storage.blob import ResourceTypes, generate_account_sas
from requests import PreparedRequest, Response, Session

from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, copy_object
from pyspark_ckpt.state_store.errors import NotFoundError
from tests.faults.faulty_s3 import Faults, proxy
from tests.services.cloud_services import ACCOUNT, KEY, CloudService, far

pytestmark = pytest.mark.usefixtures("no_machine")


@pytest.mark.in_turn
def test_a_large_object_takes_little_memory(cloud: CloudService, tmp_path: Path) -> None:
    """In parts, of which a few are in memory at once."""
    place, piece = place_at(cloud.new_folder()), os.urandom(1 << 20)
    tracemalloc.start()
    try:
        with place.create("large") as sink:
            for _ in range(160):
                sink.write(piece)
        place.download("large", tmp_path / "copy")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "copy").stat().st_size == 160 << 20
    assert most < 240 << 20
    assert threading.active_count() < 60


def test_the_service_copies_when_the_account_is_reached_by_a_signature(
    azure: CloudService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure wants the signature for the source of the copy, too. Azurite does not look at it."""
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    token = generate_account_sas(ACCOUNT, KEY, ResourceTypes(container=True, object=True), "rwdlac", until)
    account = f"AccountName={ACCOUNT};SharedAccessSignature={token}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{account};BlobEndpoint={azure.endpoint}/{ACCOUNT}")
    place, other = place_at(azure.new_folder()), place_at(azure.new_folder())
    asked: list[str] = []
    send = Session.send

    def watch(session: Session, request: PreparedRequest, **given: Any) -> Response:  # noqa: ANN401
        asked.append(str(request.headers.get("x-ms-copy-source", "")))
        return send(session, request, **given)

    monkeypatch.setattr(Session, "send", watch)
    place.put("a", b"x")
    copy_object(place, StoredFile("a", 1, "not looked at"), other, "b")
    assert other.get("b") == b"x"
    (source,) = filter(None, asked)
    assert source.endswith(f"/a?{token}")


def test_places_of_one_bucket_share_their_connections(cloud: CloudService) -> None:
    """A query has a place for each store."""
    root = cloud.new_folder()
    place_at(f"{root}/first").put("a", b"")
    process = psutil.Process()
    before = process.num_fds()
    places = [place_at(f"{root}/{number}") for number in range(50)]
    for place in places:
        place.put("a", b"")
    assert process.num_fds() - before < 10


def test_only_objects_are_asked_for(gcs: CloudService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket itself needs another right than those that the documents name."""
    asked: list[str] = []
    with proxy(gcs.endpoint, Faults(before=lambda _method, path: asked.append(path))) as endpoint:
        place = far(gcs, endpoint, monkeypatch)
        assert place.put_if_absent("a", b"x")
        assert not place.put_if_absent("a", b"x")
        for _ in range(3):
            with pytest.raises(NotFoundError):
                place.get("b")
        place.list()
        time.sleep(0.3)
    assert [path for path in asked if not re.search(r"/b/[^/]+/o", path)] == []
