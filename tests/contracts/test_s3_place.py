"""S3 as a place: the contract of all places, uploads in parts, and answers that are lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ReadTimeoutError

from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, S3Settings, place_at, with_retries
from pyspark_ckpt.state_store.errors import ConflictError, StorageError
from tests.contracts.test_blob_places import BIG, BlobPlaceContract
from tests.faults import outages
from tests.services.s3_server import S3Service, place_of


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
        """In S3, an upload keeps the time of its beginning. In the tests' service, each part changes it."""
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
