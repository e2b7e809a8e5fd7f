"""Places at URLs of Google Cloud Storage and Azure. What a process has of a bucket is shared by all places in it."""

from __future__ import annotations

from pyspark_ckpt.state_store.blobs.object_store.azure_settings import find_azure_settings
from pyspark_ckpt.state_store.blobs.object_store.gcs_settings import find_gcs_settings
from pyspark_ckpt.state_store.blobs.object_store.place import ObjectPlace
from pyspark_ckpt.state_store.blobs.object_store.service import ObjectService
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.hadoop_settings import HadoopSettings


def gcs_place(bucket: str, prefix: str, hadoop: HadoopSettings) -> ObjectPlace:
    """Return the place at ``gs://bucket/prefix``. Makes no request.

    Raises InvalidInputError (credentials in ``hadoop`` that are not supported).
    """
    settings = find_gcs_settings(hadoop)

    def connect() -> ObjectService:
        from pyspark_ckpt.state_store.blobs.object_store.gcs import GcsBucket  # noqa: PLC0415 - slow to import

        return GcsBucket(bucket, settings)

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

    def connect() -> ObjectService:
        from pyspark_ckpt.state_store.blobs.object_store.azure import AzureContainer  # noqa: PLC0415 - slow to import

        return AzureContainer(settings)

    return ObjectPlace(connect, settings.url, prefix)
