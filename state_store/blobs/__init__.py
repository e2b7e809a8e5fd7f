"""Places that store blobs durably, one room for each kind. No other code knows where state is stored."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_ckpt.state_store.blobs.base.capabilities import find_options
from pyspark_ckpt.state_store.blobs.base.place import Blob, BlobPlace, Sink, is_unstorable
from pyspark_ckpt.state_store.blobs.base.retries import RetryPolicy, with_retries
from pyspark_ckpt.state_store.blobs.local.place import LocalPlace
from pyspark_ckpt.state_store.blobs.metered import MeteredPlace, Traffic
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.state_store.hadoop_settings import HadoopSettings
from pyspark_ckpt.state_store.s3_settings import S3Settings

__all__ = [
    "Blob",
    "BlobPlace",
    "HadoopSettings",
    "LocalPlace",
    "MeteredPlace",
    "RetryPolicy",
    "S3Settings",
    "Sink",
    "Traffic",
    "find_options",
    "names_scheme",
    "place_at",
    "refuse_secrets",
    "with_retries",
]

_BOTO3S_OWN = S3Settings()
_NOTHING_SET = HadoopSettings({})
_RETRIES = RetryPolicy()
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_S3_SCHEMES = ("s3", "s3a", "s3n")
_HDFS_SCHEMES = ("hdfs", "viewfs")
_AZURE_SCHEMES = ("abfs", "abfss")
_CONTAINER = re.compile(r"^(abfss?|wasbs?)://[^/@:]*@", re.IGNORECASE)
"""How a URI of Azure begins, in which an @ does not announce a password."""
_SUPPORTED = (
    "Set checkpointLocation, or the option remote, to a local or shared file system (file:/...), S3 (s3a://...), "
    "Google Cloud Storage (gs://...), Azure (abfss://container@account.dfs.core.windows.net/...) or HDFS (hdfs://..., "
    "viewfs://...)."
)
_INSTEAD = {
    "dbfs": "Only Databricks itself reads such paths. Name the cloud path under it, of an external "
    "location or an external volume (DESCRIBE EXTERNAL LOCATION or DESCRIBE VOLUME shows it): "
    "s3://..., gs://... or abfss://... .",
    **dict.fromkeys(
        ("wasb", "wasbs"),
        "Write abfss://container@account.dfs.core.windows.net/folder, which is the same container by a newer scheme.",
    ),
    "adl": "Azure Data Lake Storage Gen1 has ended. Use Gen2: abfss://container@account.dfs.core.windows.net/folder.",
    "gcs": "Write gs://bucket/folder.",
}


def names_scheme(location: str) -> bool:
    """Return whether a location is a URI and not a path."""
    return _SCHEME.match(location) is not None


def refuse_secrets(location: str) -> None:
    """Raise InvalidInputError if a location is a URI with a user or a password. The message does not show it."""
    if names_scheme(location):
        _authority(_CONTAINER.sub(r"\1://", location), location.partition(":")[0].lower())


def place_at(
    uri: str,
    s3: S3Settings = _BOTO3S_OWN,
    hadoop: HadoopSettings = _NOTHING_SET,
    retries: RetryPolicy = _RETRIES,
) -> BlobPlace:
    """Return the place at an absolute path, a ``file:`` URI, or a URI of S3, Google Cloud Storage, Azure or HDFS.

    URIs are Hadoop's paths, as Spark writes and reads them: percent signs are part of the name, not escapes. S3 is
    ``s3://bucket/prefix``, ``s3a:`` or ``s3n:``. For ``s3a:`` only, ``hadoop`` fills in what ``s3`` leaves open. Others
    are ``gs://bucket/prefix`` and ``abfss://container@account.dfs.core.windows.net/path``, or ``abfs:``. HDFS is
    ``hdfs://host:port/path``, ``hdfs://nameservice/path``, ``hdfs:///path`` or ``viewfs://table/path``. ``retries``
    says how requests are repeated.

    Raises InvalidInputError that names the scheme (any other kind of place), ProcessError that names the extra of the
    package that the place needs (it is not installed).
    """
    return with_retries(_place_at(uri, s3, hadoop), retries)


def _place_at(uri: str, s3: S3Settings, hadoop: HadoopSettings) -> BlobPlace:
    _refuse_unstorable(uri)
    found = _SCHEME.match(uri)
    scheme = found[0].rstrip(":").lower() if found else ""
    if not scheme:
        return LocalPlace(_absolute(uri, uri))
    if scheme == "file":
        return _local(uri)
    if scheme in _S3_SCHEMES:
        return _s3(uri, scheme, s3, hadoop)
    if scheme in _HDFS_SCHEMES:
        require_extra("hdfs_native", f"A place of {scheme}:")
        from pyspark_ckpt.state_store.blobs.hdfs.place import HdfsPlace  # noqa: PLC0415 - loaded where it is needed

        return HdfsPlace(uri)
    if scheme == "gs":
        return _gcs(uri, hadoop)
    if scheme in _AZURE_SCHEMES:
        return _azure(uri, scheme, hadoop)
    raise InvalidInputError(
        f"State cannot be stored at {uri!r}: the scheme {scheme!r} is not supported.",
        hint=_INSTEAD.get(scheme, _SUPPORTED),
    )


def _authority(uri: str, scheme: str) -> str:
    """Return the host or the bucket that a URI names. Errors do not show the URI, which may hold a secret."""
    try:
        authority = urlsplit(uri).netloc
    except ValueError as problem:
        raise InvalidInputError(f"State cannot be stored at the {scheme}: URI: it is malformed.") from problem
    if "@" in authority:
        raise InvalidInputError(
            f"State cannot be stored at the {scheme}: URI: it has a user or a password before its host or bucket.",
            hint="Remove it. Credentials come from the client's own chain or the settings of Hadoop's connector: see "
            "docs/storage.md.",
        )
    return authority


def _local(uri: str) -> LocalPlace:
    host = _authority(uri, "file")
    if host not in ("", "localhost"):
        raise InvalidInputError(
            f"State cannot be stored at {uri!r}: a file: URI must not name a host, got {host!r}.",
            hint="Write file:///path with three slashes.",
        )
    return LocalPlace(_absolute(uri.partition(":")[2].removeprefix("//" + host), uri))


def _s3(uri: str, scheme: str, own: S3Settings, hadoop: HadoopSettings) -> BlobPlace:
    bucket, prefix = _authority(uri, scheme), uri.partition("://")[2].partition("/")[2]
    if not bucket:
        raise InvalidInputError(
            f"State cannot be stored at {uri!r}: it names no bucket.", hint="Write s3://bucket/prefix."
        )
    require_extra("boto3", f"A place of {scheme}:")
    from pyspark_ckpt.state_store.blobs.s3.place import S3Place  # noqa: PLC0415 - loaded where it is needed

    if scheme == "s3a":
        return S3Place(bucket, prefix, hadoop.complete(own, bucket), scheme)
    return S3Place(bucket, prefix, own)


def _gcs(uri: str, hadoop: HadoopSettings) -> BlobPlace:
    bucket, prefix = _authority(uri, "gs"), uri.partition("://")[2].partition("/")[2]
    if not bucket:
        raise InvalidInputError(
            f"State cannot be stored at {uri!r}: it names no bucket.", hint="Write gs://bucket/prefix."
        )
    require_extra("google.cloud.storage", "A place of gs:")
    from pyspark_ckpt.state_store.blobs.object_store.clouds import gcs_place  # noqa: PLC0415 - as for S3

    return gcs_place(bucket, prefix, hadoop)


def _azure(uri: str, scheme: str, hadoop: HadoopSettings) -> BlobPlace:
    require_extra("azure.storage.blob", f"A place of {scheme}:")
    from pyspark_ckpt.state_store.blobs.object_store.clouds import azure_place  # noqa: PLC0415 - as for S3

    return azure_place(uri, scheme, hadoop)


def _refuse_unstorable(name: str) -> None:
    if is_unstorable(name):
        raise InvalidInputError("State cannot be stored at a place whose name has a NUL or is not valid Unicode.")


def _absolute(path: str, given: str) -> Path:
    if not path.startswith("/"):
        raise InvalidInputError(f"State cannot be stored at {given!r}: the path must be absolute.")
    return Path("/" + path.lstrip("/"))
