"""Checkpoints that Spark 4.3.0 has written with its own providers, in ``spark-4.3.tar.xz``.

An aggregation with each provider and in each form (versions 1 to 12, and 1 to 6 for the one without changelogs; see
``write.py``), a join in state format 4, and a processor with a time to live.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from pyspark_ckpt.adoption.stores import Provider

FORMS: dict[str, Provider] = {"rocksdb": "rocksdb", "changelog": "rocksdb", "format-2": "rocksdb", "hdfs": "hdfs"}
VERSIONS = {"rocksdb": 6}


def unpack_all(folder: Path) -> Path:
    """Unpack all checkpoints below ``folder``, and return it."""
    with tarfile.open(Path(__file__).with_name("spark-4.3.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder
