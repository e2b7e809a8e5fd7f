"""Checkpoints that Spark has written with its own providers.

``spark-4.3.tar.xz``, by Spark 4.3.0: an aggregation with each provider and in each form (versions 1 to 12, and 1 to 6
for the one without changelogs; see ``write.py``), a join in state format 4, and a processor with a time to live.

``spark-4.3-forms.tar.xz``, by Spark 4.3.0: a processor with a time to live, with changelogs and checksums of rows, and
the same with Avro as well.

``spark-4.3-evolved.tar.xz``, by Spark 4.3.0: a processor in five runs of a batch with five keys each. The first two
declare the values ``a`` and ``b``, the list ``l`` and the map ``m``; the third one ``a`` and ``b``; the fourth one
``a``, and it deletes ``l``; the last one ``a``.

``spark-3.5.tar.xz``, by Spark 3.5.9: many operators with each provider. See ``write_operators.py``.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from pyspark_ckpt.offline.adopting.stores import Provider
from pyspark_ckpt.offline.reading import open_state

FORMS: dict[str, Provider] = {"rocksdb": "rocksdb", "changelog": "rocksdb", "format-2": "rocksdb", "hdfs": "hdfs"}
VERSIONS = {"rocksdb": 6}


def read_rows(checkpoint: Path) -> list[dict[str, Any]]:
    """The keys and values of the only state of a checkpoint of this store, sorted."""
    with open_state(checkpoint, operator=0) as state:
        return sorted(state.to_arrow().select(["key", "value"]).to_pylist(), key=repr)


def unpack_all(spark: str, folder: Path) -> Path:
    """Unpack all checkpoints of a release below ``folder``, and return it."""
    with tarfile.open(Path(__file__).with_name(f"spark-{spark}.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder
