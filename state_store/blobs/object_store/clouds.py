"""Places at URLs of Google Cloud Storage and Azure. All places in a bucket share one client, with its connections."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyspark_ckpt.state_store.blobs.base.clients import Clients, SharedClient
from pyspark_ckpt.state_store.blobs.object_store.azure_secrets import is_fixed
from pyspark_ckpt.state_store.blobs.object_store.azure_settings import AzureSettings, find_azure_settings
from pyspark_ckpt.state_store.blobs.object_store.gcs_settings import KEY_FILE, GcsSettings, find_gcs_settings
from pyspark_ckpt.state_store.blobs.object_store.place import ObjectPlace
from pyspark_ckpt.state_store.blobs.object_store.service import ObjectService
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.hadoop_settings import HadoopSettings


class _Bucket(NamedTuple):
    """The key of a Google client. ``written_ns``: of its key file, so that a new key gets a new client."""

    name: str
    settings: GcsSettings
    written_ns: int


def _connect_gcs(bucket: _Bucket) -> ObjectService:
    from pyspark_ckpt.state_store.blobs.object_store.gcs import GcsBucket  # noqa: PLC0415 - slow to import

    return GcsBucket(bucket.name, bucket.settings)


def _reconnect_gcs(bucket: _Bucket, refused: ObjectService, is_recent: bool) -> ObjectService | None:  # noqa: FBT001 - see Clients
    from pyspark_ckpt.state_store.blobs.object_store.gcs import GcsBucket  # noqa: PLC0415 - slow to import
    from pyspark_ckpt.state_store.blobs.object_store.gcs_credentials import read_source  # noqa: PLC0415

    del is_recent
    has_changed = isinstance(refused, GcsBucket) and read_source(bucket.settings) != refused.source
    return GcsBucket(bucket.name, bucket.settings) if has_changed else None


class _Container(NamedTuple):
    """The key of a client of Azure: the settings found for its ``address``, a scheme, container and host."""

    address: tuple[str, str, str]
    hadoop: HadoopSettings
    settings: AzureSettings


def _connect_azure(container: _Container) -> ObjectService:
    from pyspark_ckpt.state_store.blobs.object_store.azure import AzureContainer  # noqa: PLC0415 - slow to import

    return AzureContainer(container.settings)


def _reconnect_azure(container: _Container, refused: ObjectService, is_recent: bool) -> ObjectService | None:  # noqa: FBT001 - see Clients
    from pyspark_ckpt.state_store.blobs.object_store.azure import AzureContainer  # noqa: PLC0415 - slow to import

    found = find_azure_settings(*container.address, container.hadoop)
    is_known = isinstance(refused, AzureContainer) and refused.settings.secret == found.secret
    return None if is_known and (is_recent or is_fixed(found.secret)) else AzureContainer(found)


_BUCKETS: Clients[_Bucket, ObjectService] = Clients(_connect_gcs, _reconnect_gcs)
_CONTAINERS: Clients[_Container, ObjectService] = Clients(_connect_azure, _reconnect_azure)


def gcs_place(bucket: str, prefix: str, hadoop: HadoopSettings) -> ObjectPlace:
    """Return the place at ``gs://bucket/prefix``. Makes no request.

    Raises InvalidInputError (credentials in ``hadoop`` that are not supported).
    """
    settings = find_gcs_settings(hadoop)

    def connect() -> SharedClient[ObjectService]:
        return _BUCKETS.get(_Bucket(bucket, settings, _find_time_of(settings.file or os.environ.get(KEY_FILE, ""))))

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
    address = scheme, container, host
    found = _Container(address, hadoop, find_azure_settings(*address, hadoop))
    return ObjectPlace(lambda: _CONTAINERS.get(found), found.settings.url, prefix)


def _find_time_of(file: str) -> int:
    """Return when a file was written; 0 if it cannot be read, which its reader reports better."""
    with suppress(OSError):
        return Path(file).stat().st_mtime_ns if file else 0
    return 0
