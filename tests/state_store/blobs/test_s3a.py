"""What settings of S3A mean for a place of ``s3a:``, and that none of them is shown."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.blobs import HadoopSettings, LocalPlace, S3Settings, place_at
from pyspark_ckpt.state_store.blobs.s3.place import S3Place
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.remote import find_place
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.s3_settings import Credentials

KEYS = {"access.key": "AKIA1", "secret.key": "hidden"}
DEFAULT_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,\n org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
)


def s3a(settings: dict[str, str]) -> HadoopSettings:
    return HadoopSettings({f"fs.s3a.{name}": value for name, value in settings.items()})


@pytest.mark.parametrize(
    ("settings", "meaning"),
    [
        ({}, {}),
        ({"endpoint": "https://minio:9000"}, {"endpoint": "https://minio:9000"}),
        ({"endpoint": " minio:9000 "}, {"endpoint": "https://minio:9000"}),
        ({"endpoint": "minio:9000", "connection.ssl.enabled": "false"}, {"endpoint": "http://minio:9000"}),
        ({"endpoint": "https://minio", "connection.ssl.enabled": "false"}, {"endpoint": "https://minio"}),
        ({"endpoint": "a", "bucket.b.endpoint": "c"}, {"endpoint": "https://c"}),
        ({"endpoint": "a", "bucket.b.endpoint": ""}, {}),
        ({"bucket.other.endpoint": "c"}, {}),
        ({"endpoint": "s3.amazonaws.com", "endpoint.region": "eu-west-1"}, {"region": "eu-west-1"}),
        ({"endpoint.region": "sdk"}, {}),
        ({"endpoint.region": ""}, {}),
        (
            {"endpoint": "s3.eu-central-1.amazonaws.com"},
            {"endpoint": "https://s3.eu-central-1.amazonaws.com", "region": "eu-central-1"},
        ),
        (
            {"endpoint": "https://s3.cn-north-1.amazonaws.com.cn"},
            {"endpoint": "https://s3.cn-north-1.amazonaws.com.cn", "region": "cn-north-1"},
        ),
        (
            {"endpoint": "https://bucket.vpce-1a-2b.s3.us-gov-west-1.vpce.amazonaws.com"},
            {"endpoint": "https://bucket.vpce-1a-2b.s3.us-gov-west-1.vpce.amazonaws.com", "region": "us-gov-west-1"},
        ),
        (
            {"endpoint": "s3-fips.dualstack.us-east-2.amazonaws.com"},
            {"endpoint": "https://s3-fips.dualstack.us-east-2.amazonaws.com", "region": "us-east-2"},
        ),
        ({"path.style.access": "true"}, {"addressing": "path"}),
        ({"path.style.access": "true", "bucket.b.path.style.access": "false"}, {}),
        ({"encryption.algorithm": "SSE-KMS"}, {"encryption": "aws:kms"}),
        (
            {"encryption.algorithm": "SSE-KMS", "encryption.key": "arn:k"},
            {"encryption": "aws:kms", "kms_key_id": "arn:k"},
        ),
        ({"server-side-encryption-algorithm": "AES256", "encryption.key": "unused"}, {"encryption": "AES256"}),
        (
            {"bucket.b.server-side-encryption-algorithm": "SSE-S3", "encryption.algorithm": "SSE-C"},
            {"encryption": "AES256"},
        ),
        (KEYS, {"credentials": Credentials("AKIA1", "hidden")}),
        ({**KEYS, "session.token": "t"}, {"credentials": Credentials("AKIA1", "hidden", "t")}),
        ({**KEYS, "bucket.b.secret.key": "other"}, {"credentials": Credentials("AKIA1", "other")}),
        ({**KEYS, "aws.credentials.provider": DEFAULT_PROVIDERS}, {"credentials": Credentials("AKIA1", "hidden")}),
        ({**KEYS, "aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"}, {}),
        ({"access.key": "AKIA1"}, {}),
    ],
)
def test_complete_fills_what_is_open_as_s3a_is_set(settings: dict[str, str], meaning: dict[str, Any]) -> None:
    assert s3a(settings).complete(S3Settings(), "b") == S3Settings(**meaning)


def test_own_options_win_over_those_of_s3a() -> None:
    own = S3Settings("http://own", "here-1", "virtual", "none", "key")
    settings = {"endpoint": "x", "endpoint.region": "y", "path.style.access": "true", "encryption.algorithm": "SSE-C"}
    assert s3a(settings).complete(own, "b") == own


@pytest.mark.parametrize("algorithm", ["SSE-C", "CSE-KMS", "CSE-CUSTOM", "rot13"])
def test_an_encryption_that_state_cannot_have_is_refused_by_name(algorithm: str) -> None:
    settings = {"encryption.algorithm": algorithm, "encryption.key": "hidden"}
    with pytest.raises(InvalidInputError, match=algorithm) as caught:
        place_at("s3a://b/x", S3Settings(), s3a(settings))
    assert "s3Encryption" in caught.value.hint
    assert "hidden" not in str(caught.value)


def test_settings_of_s3a_are_for_places_of_s3a_alone() -> None:
    assert place_at("s3://b/x", S3Settings(), s3a({"encryption.algorithm": "SSE-C"})).url == "s3://b/x"


def test_offline_work_reaches_each_bucket_as_it_is_set_for_s3a(tmp_path: Path) -> None:
    settings = {**KEYS, "bucket.b.encryption.algorithm": "SSE-S3", "bucket.c.encryption.algorithm": "SSE-C"}
    options = replace(parse({}), hadoop=s3a({**settings, "proxy.password": "not ours"}))
    there: Workplace = pickle.loads(pickle.dumps(Workplace(options)))  # noqa: S301 - as a task of Spark has it
    places = [there.place(there.place(f"s3a://{bucket}/x").url) for bucket in "ab"]
    assert [place.writes for place in places if isinstance(place, S3Place)] == [{}, {"ServerSideEncryption": "AES256"}]
    checkpoint = LocalPlace(tmp_path)
    checkpoint.put("state/0/0/remote.json", b'{"place": "s3a://c/x"}')
    with pytest.raises(InvalidInputError, match="objects of bucket c with SSE-C"):
        find_place(checkpoint, Identity(0, 0, "default"), there.place, "")
    assert b"not ours" not in pickle.dumps(there), "no secret goes along that nobody needs"
    assert "AKIA1" not in repr(there)


@pytest.mark.parametrize("value", ["hid\nden", "hid den", "hid\u00e9den"])
def test_a_key_that_no_header_can_have_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(InvalidInputError, match=r"fs\.s3a\.secret\.key") as caught:
        s3a({**KEYS, "secret.key": value}).complete(S3Settings(), "b")
    assert value not in str(caught.value)


def test_secrets_are_not_in_what_python_prints() -> None:
    settings = s3a({**KEYS, "session.token": "hidden"})
    printed = f"{settings!r} {settings} {settings.complete(S3Settings(), 'b')!r}"
    assert "hidden" not in printed
    assert "AKIA1" not in printed
