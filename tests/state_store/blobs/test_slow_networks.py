"""Objects that take longer to send than a connection takes to be made."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import pytest

from pyspark_ckpt.state_store.blobs import RetryPolicy, S3Settings, place_at
from tests.faults.outages import wire
from tests.services.cloud_services import CloudService

BYTES_PER_S = 300_000
DATA = os.urandom(7 << 20)
"""In one request. Buffers of the system take some of it at once."""


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["s3", "gcs", "azure"])
def test_an_object_is_written_when_the_network_is_slow(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = request.getfixturevalue(name)
    there = urlsplit(service.endpoint)
    with wire((str(there.hostname), int(there.port or 0)), BYTES_PER_S) as slow:
        endpoint, settings = f"http://127.0.0.1:{slow.port}", S3Settings()
        if isinstance(service, CloudService):
            for variable, value in service.environment(endpoint).items():
                monkeypatch.setenv(variable, value)
        else:
            settings = S3Settings(endpoint=endpoint, addressing="path")
        waited: list[float] = []
        retries = RetryPolicy(240, waited.append)
        place = place_at(service.new_folder(), settings, retries=retries)
        assert place.put_if_absent("a", DATA)
        assert waited == [], "it was sent once"
        assert place.get("a") == DATA
