"""Keys of S3 that change again and again take no more memory than the last few of them."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest
from botocore.client import BaseClient

from pyspark_ckpt.state_store.blobs import S3Settings
from pyspark_ckpt.state_store.blobs.base.clients import CLIENTS_KEPT
from pyspark_ckpt.state_store.blobs.s3.place import S3Place
from pyspark_ckpt.state_store.s3_settings import Credentials
from pyspark_ckpt.state_store.server.received_secrets import SECRETS_KEPT, ReceivedSecrets
from tests.conftest import MakeLab
from tests.labs.lab import expected
from tests.services.s3_server import S3Service


def clients() -> int:
    gc.collect()
    return sum(issubclass(type(each), BaseClient) for each in gc.get_objects())


@pytest.mark.in_turn
@pytest.mark.parametrize("fmt", [1, 2])
def test_a_query_that_is_restarted_with_new_keys_leaves_no_client(fmt: int, make_lab: MakeLab, s3: S3Service) -> None:
    """The service takes all of them: what differs is a session token that it does not look at, or a setting."""
    root = s3.new_folder().replace("s3:", "s3a:")
    place: dict[str, Any] = {"fmt": fmt, "checkpoint_root": root, "state_dir": f"{root}/state/0/3"}
    lab, commit_id = make_lab(), None
    before = clients()
    for run in range(12):
        lab.s3a = {**s3.s3a, **s3.s3a_keys, "fs.s3a.endpoint.region": f"region-{run}"}
        handle = lab.open(f"run-{run}", **place)
        (commit_id,) = lab.grow(handle, 1, run, commit_id if fmt == 2 else None)
        lab.server.call("close", handle=handle)
        lab.server.settled()
    assert clients() - before <= CLIENTS_KEPT
    assert lab.begin(lab.open("run", **place), 12, commit_id if fmt == 2 else None).rows == expected(12)


def test_a_client_that_is_held_stays_and_is_one_for_all(s3: S3Service) -> None:
    held = [settings(number) for number in range(3 * CLIENTS_KEPT)]
    places = [S3Place("bucket", "prefix", each) for each in held]
    first = [id(place.client) for place in places]
    again = [id(S3Place("bucket", "other", each).client) for each in held]
    assert first == again
    assert len(set(first)) == len(held)
    assert [id(place.client) for place in places] == first
    assert s3.endpoint


def test_one_key_set_more_takes_little(s3: S3Service) -> None:
    """Each client once had a description of the service of its own, of 12 MB."""
    assert s3.endpoint
    keep = [S3Place("bucket", "prefix", settings(number)).client for number in range(2)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        keep += [S3Place("bucket", "prefix", settings(number)).client for number in range(100, 110)]
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / 10
    finally:
        tracemalloc.stop()
    assert each < 2 << 20


def test_of_keys_that_were_entrusted_the_last_are_kept() -> None:
    secrets = ReceivedSecrets()
    for number in range(5 * SECRETS_KEPT):
        secrets.keep(json.dumps({"number": number, "secrets": {"fs.s3a.access.key": f"key-{number}"}}).encode())
        assert secrets.await_secrets(max(0, number - 64)) == {"fs.s3a.access.key": f"key-{max(0, number - 64)}"}
    assert len(secrets._secrets) == SECRETS_KEPT


def settings(number: int) -> S3Settings:
    return S3Settings("http://127.0.0.1:1", "us-east-1", credentials=Credentials(f"key-{number}", "secret"))
