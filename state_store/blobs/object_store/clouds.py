"""Places at URLs of Google Cloud Storage and Azure. All places in a bucket share one client, with its connections."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyspark_ckpt.state_store.blobs.base.clients import Clients
from pyspark_ckpt.state_store.blobs.object_store.azure_settings import AzureSettings, find_azure_settings
from pyspark_ckpt.state_store.blobs.object_store.gcs_settings import GcsSettings, find_gcs_settings
from pyspark_ckpt.state_store.blobs.object_store.place import ObjectPlace
from pyspark_ckpt.state_store.blobs.object_store.service import ObjectService
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.hadoop_settings import HadoopSettings

_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


class _Bucket(NamedTuple):
    """What a client of Google is for. ``written_ns``: when the file of its key was, so that a new key gets another."""

    name: str
    settings: GcsSettings
    written_ns: int


def _connect_gcs(bucket: _Bucket) -> ObjectService:
    from pyspark_ckpt.state_store.blobs.object_store.gcs import GcsBucket  # noqa: PLC0415 - slow to import

    return GcsBucket(bucket.name, bucket.settings)


def _connect_azure(settings: AzureSettings) -> ObjectService:
    from pyspark_ckpt.state_store.blobs.object_store.azure import AzureContainer  # noqa: PLC0415 - slow to import

    return AzureContainer(settings)


_BUCKETS: Clients[_Bucket, ObjectService] = Clients(_connect_gcs)
_CONTAINERS: Clients[AzureSettings, ObjectService] = Clients(_connect_azure)


def gcs_place(bucket: str, prefix: str, hadoop: HadoopSettings) -> ObjectPlace:
    """Return the place at ``gs://bucket/prefix``. Makes no request.

    Raises InvalidInputError (credentials in ``hadoop`` that are not supported).
    """
    settings = find_gcs_settings(hadoop)

    def connect() -> ObjectService:
        return _BUCKETS.get(_Bucket(bucket, settings, _find_time_of(settings.file or os.environ.get(_KEY_FILE, ""))))

    return ObjectPlace(connect, f"gs://{bucket}", prefix)


def azure_place(uri: str, scheme: str, hadoop: HadoopSettings) -> ObjectPlace:
    """Return the place at ``abfss://container@account.dfs.core.windows.net/prefix``. Makes no request.

    Raises InvalidInputError (another form of URI, or credentials in ``hadoop`` that are not supported).
    """
    authority, _, prefix = uri.partition("://")[2].partition("/")
    container, _, host = authority.partition("@")
    if not container or ":" in container or "." not in host or "@" in host:
        raise InvalidInputError(
            f"State cannot be stored at the {scheme}: URI: it does not name a container and an account.",
            hint=f"Write {scheme}://container@account.dfs.core.windows.net/folder.",
        )
    settings = find_azure_settings(scheme, container, host, hadoop)

    return ObjectPlace(lambda: _CONTAINERS.get(settings), settings.url, prefix)


def _find_time_of(file: str) -> int:
    """Return when a file was written; 0 if there is none that can be read, which its reader tells better."""
    with suppress(OSError):
        return Path(file).stat().st_mtime_ns if file else 0
    return 0
