"""Settings of Hadoop's connectors to S3, Google Cloud Storage and Azure, so that a place needs no second set of them.

The JVM passes the settings on unchanged. This module interprets those of S3A, ``blobs/object_store`` the others.

Reference: https://hadoop.apache.org/docs/stable/hadoop-aws/tools/hadoop-aws/index.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.s3_settings import Credentials, S3Settings

PREFIX = "fs.s3a."
CLOUDS = ("fs.azure.account.", "fs.azure.sas.", "fs.gs.auth.", "google.cloud.auth.", "fs.gs.storage.root.url")
"""How the names of settings for Google Cloud Storage and Azure begin."""

_CENTRAL_HOST = "s3.amazonaws.com"
_REGION_OF_HOST = re.compile(
    r"(?:^|[.-])s3[.-](?:fips\.)?(?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d+)\.(?:vpce\.)?amazonaws\.com(?:\.cn)?$"
)
_REGIONS_OF_THE_SDK = frozenset({"", "sdk", "ec2"})
_PROVIDERS_OF_KEYS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
_ENCRYPTIONS = {"": "auto", "AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}
_OLD_NAMES = {
    "encryption.algorithm": "server-side-encryption-algorithm",
    "encryption.key": "server-side-encryption.key",
}
_NAMES = (
    *("endpoint", "endpoint.region", "connection.ssl.enabled", "path.style.access", "aws.credentials.provider"),
    *("access.key", "secret.key", "session.token", *_OLD_NAMES, *_OLD_NAMES.values()),
)
_COUNTS = tuple(f".{name}" for name in _NAMES)


class HadoopSettings:
    """Settings ``fs.s3a.*``, ``fs.gs.*`` and ``fs.azure.*``, and those of single buckets and accounts.

    They hold secrets and are never shown.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Keep the relevant ones among ``settings``. Their names are full names."""
        self._settings = {
            name: value for name, value in settings.items() if name.endswith(_COUNTS) or name.startswith(CLOUDS)
        }

    def find(self, *names: str) -> str:
        """Return the first non-empty setting with one of these full names; empty if there is none."""
        found = (self._settings.get(name, "").strip() for name in names)
        return next((value for value in found if value), "")

    def list_names(self) -> list[str]:
        """Return the sorted names of all settings. The names are no secrets."""
        return sorted(self._settings)

    def __eq__(self, other: object) -> bool:
        """Return whether all settings are the same."""
        return isinstance(other, HadoopSettings) and self._settings == other._settings

    def __hash__(self) -> int:
        """Return a hash that agrees with ``__eq__``."""
        return hash(frozenset(self._settings.items()))

    def complete(self, own: S3Settings, bucket: str) -> S3Settings:
        """Return ``own`` with its open values filled in from the settings of S3A for ``bucket``.

        S3A's keys replace those of ``own``. Raises InvalidInputError, which shows no secret (an encryption or a key
        that this package cannot use).
        """
        endpoint, addressing = self._endpoint(bucket), own.addressing
        encryption, kms_key_id = own.encryption, own.kms_key_id
        if addressing == "auto" and self._has(bucket, "path.style.access"):
            addressing = "path"
        if encryption == "auto":
            encryption, kms_key_id = self._encryption(bucket, kms_key_id)
        return replace(
            own,
            endpoint=own.endpoint or ("" if _host(endpoint) == _CENTRAL_HOST else endpoint),
            region=own.region or self._region(bucket, own.endpoint or endpoint),
            addressing=addressing,
            encryption=encryption,
            kms_key_id=kms_key_id,
            credentials=self._credentials(bucket) or own.credentials,
        )

    def _endpoint(self, bucket: str) -> str:
        endpoint = self._value(bucket, "endpoint")
        if not endpoint or "://" in endpoint:
            return endpoint
        scheme = "https" if self._has(bucket, "connection.ssl.enabled", default="true") else "http"
        return f"{scheme}://{endpoint}"

    def _region(self, bucket: str, endpoint: str) -> str:
        """Return the region that is set, else the one in the name of an AWS endpoint. If empty, boto3 finds it."""
        region = self._value(bucket, "endpoint.region")
        if region and region.lower() not in _REGIONS_OF_THE_SDK:
            return region
        named = _REGION_OF_HOST.search(_host(endpoint))
        return named[1] if named else ""

    def _encryption(self, bucket: str, own_key: str) -> tuple[str, str]:
        algorithm = self._value(bucket, "encryption.algorithm")
        name = "AES256" if algorithm.upper() == "SSE-S3" else algorithm.upper()
        if name not in _ENCRYPTIONS:
            raise InvalidInputError(
                f"S3A encrypts the objects of bucket {bucket} with {algorithm} ({PREFIX}encryption.algorithm), which "
                "the state store does not support.",
                hint="Set the option s3Encryption to the encryption for state: none, AES256 or aws:kms.",
            )
        has_key = name in {"SSE-KMS", "DSSE-KMS"}
        return _ENCRYPTIONS[name], own_key or (self._value(bucket, "encryption.key") if has_key else "")

    def _credentials(self, bucket: str) -> Credentials | None:
        """Return the keys that are set, if S3A itself would use them. None means boto3's own chain."""
        providers = self._value(bucket, "aws.credentials.provider")
        if providers and not any(name in providers for name in _PROVIDERS_OF_KEYS):
            return None
        access, secret, token = (self._key(bucket, name) for name in ("access.key", "secret.key", "session.token"))
        return Credentials(access, secret, token or None) if access and secret else None

    def _key(self, bucket: str, name: str) -> str:
        value = self._value(bucket, name)
        if not value.isascii() or not value.isprintable() or " " in value:  # the error of an HTTP header would show it
            raise InvalidInputError(f"{PREFIX}{name} for bucket {bucket} must be printable ASCII without spaces.")
        return value

    def _has(self, bucket: str, name: str, default: str = "false") -> bool:
        return (self._value(bucket, name) or default).lower() == "true"

    def _value(self, bucket: str, name: str) -> str:
        """Return the bucket's own setting, else that of all buckets. Empty if there is none."""
        names = (name, _OLD_NAMES.get(name, name))
        keys = [f"{PREFIX}{scope}{each}" for scope in (f"bucket.{bucket}.", "") for each in names]
        return next((self._settings[key].strip() for key in keys if key in self._settings), "")


def _host(endpoint: str) -> str:
    return endpoint.rpartition("://")[2].partition("/")[0].partition(":")[0].lower()
