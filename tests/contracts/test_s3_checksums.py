"""Every write tells the service the checksum of its content. A bucket with Object Lock demands that."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from pyspark_ckpt.state_store.blobs import S3Settings, place_at
from pyspark_ckpt.state_store.errors import StorageError
from tests.conftest import MakeLab
from tests.faults.faulty_s3 import Faults, assert_works, proxy
from tests.labs.lab import expected
from tests.services.s3_server import S3Service
from tests.state_store.restore.test_remote import started


def locked() -> Faults:
    faults = Faults()
    faults.is_locked = True
    return faults


def test_a_place_works_when_its_bucket_demands_checksums(s3: S3Service, tmp_path: Path) -> None:
    """Small objects, those in parts, replaced and copied ones."""
    with proxy(s3.endpoint, locked()) as endpoint:
        place: Any = place_at(f"{s3.new_folder()}/state", S3Settings(endpoint=endpoint, addressing="path"))
        place.put("copied", b"content")
        assert place.copy_from(place, "copied", 7, "copy")
        assert place.get("copy") == b"content"
        place.delete("copied")
        place.delete("copy")
        assert place.is_exclusive()
        assert_works(place, random.Random(0).randbytes(20 << 20), tmp_path)


def test_a_query_works_when_its_bucket_demands_checksums(s3: S3Service, make_lab: MakeLab) -> None:
    with proxy(s3.endpoint, locked()) as endpoint:
        lab = started(make_lab, remote=s3.new_folder(), s3Endpoint=endpoint, s3Addressing="path")
        handle = lab.open()
        commit_id = lab.grow(handle, 12)[-1]
        lab.server.call("snapshot", handle=handle, force=True)
        lab.server.call("cleanup", handle=handle)
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(), 12, commit_id).rows == expected(12)


def test_an_error_names_the_option_when_no_checksum_is_sent(s3: S3Service) -> None:
    with proxy(s3.endpoint, locked()) as endpoint:
        settings = S3Settings(endpoint=endpoint, addressing="path", checksums="none")
        place = place_at(s3.new_folder(), settings)
        for write in (place.put, place.put_if_absent):
            with pytest.raises(StorageError, match=r"Object Lock, and demands a checksum .* option s3Checksums"):
                write("object", b"content")
        with pytest.raises(StorageError, match="s3Checksums"), place.create("large") as sink:
            sink.write(bytes(20 << 20))


def test_content_that_was_damaged_on_its_way_is_sent_again(s3: S3Service) -> None:
    faults = Faults(lambda method, number: "bad_digest" if method == "PUT" and number % 2 else None)
    with proxy(s3.endpoint, faults) as endpoint:
        place = place_at(s3.new_folder(), S3Settings(endpoint=endpoint, addressing="path"))
        for number in range(4):
            place.put(f"{number}", b"content")
            assert place.get(f"{number}") == b"content"
    assert faults.seen["bad_digest"]


def test_a_real_bucket_with_object_lock_takes_writes(s3: S3Service, tmp_path: Path) -> None:
    """A service that has no Object Lock, or no versions for it, says so when the bucket is made."""
    bucket = f"locked-{uuid.uuid4().hex[:12]}"
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    try:
        s3.client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
        lock = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        s3.client.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=lock)
    except ClientError as problem:
        pytest.skip(f"NOT RUN: the service has no Object Lock: {problem}")
    place = place_at(f"s3://{bucket}/state", S3Settings(endpoint=s3.endpoint, addressing="path"))
    data = random.Random(0).randbytes(20 << 20)
    assert place.put_if_absent("a", b"first")
    with place.create("large") as sink:
        sink.write(data)
    place.download("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == data
