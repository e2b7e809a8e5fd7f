"""Settings of Hadoop's connectors to S3, Google Cloud Storage and Azure, as the JVM of a session has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.state_store.blobs import HadoopSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BEGINS = ("fs.s3a.", "fs.azure.", "fs.gs.", "google.cloud.auth.")
_FILES = "security.credential.provider.path"
_PATHS = (f"fs.s3a.{_FILES}", f"hadoop.{_FILES}")
"""The settings that name credential files: those of S3A count before those of all connectors."""


def read_hadoop_settings(session: SparkSession) -> HadoopSettings:
    """Return the settings. Secrets in Hadoop's credential files replace those in the configuration, as for Hadoop."""
    jvm: Any = session._jvm  # noqa: SLF001
    conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    found = {f"{begin}{name}": value for begin in _BEGINS for name, value in conf.getPropsWithPrefix(begin).items()}
    return HadoopSettings({**found, **_read_files(jvm, conf)})


def _read_files(jvm: Any, conf: Any) -> Mapping[str, str]:  # noqa: ANN401 - objects of the JVM
    paths = [path for name in _PATHS if (path := conf.getTrimmed(name))]
    if not paths:
        return {}
    conf.set(_PATHS[-1], ",".join(paths))
    found: dict[str, str] = {}
    for provider in jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(conf):
        for name in provider.getAliases():
            if name.startswith(_BEGINS):
                found.setdefault(name, "".join(provider.getCredentialEntry(name).getCredential()))
    return found
