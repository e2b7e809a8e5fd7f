"""A state store for PySpark Structured Streaming, and the call that gives it to a session.

::

    import pyspark_ckpt
    from pyspark.sql import SparkSession

    spark = pyspark_ckpt.configure(SparkSession.builder).getOrCreate()

Importing this package does not import PySpark: the state server, a process of its own, must start quickly.
"""

from __future__ import annotations

from pathlib import Path

# In a checkout, also one that is installed with `pip install -e`, the sub-packages stand beside this folder.
_HERE = Path(__file__).resolve().parent
if not (_HERE / "state_store").is_dir():
    __path__[:] = [str(_HERE), str(_HERE.parent)]

from pyspark_ckpt.session import PROVIDER_CLASS, configure, jar_path, spark_conf  # noqa: E402
from pyspark_ckpt.state_store.errors import (  # noqa: E402
    CkptError,
    ConflictError,
    FormatError,
    InternalError,
    InvalidInputError,
    LifecycleError,
    NotFoundError,
    StorageError,
)

__version__ = "0.1.0"

__all__ = [
    "PROVIDER_CLASS",
    "CkptError",
    "ConflictError",
    "FormatError",
    "InternalError",
    "InvalidInputError",
    "LifecycleError",
    "NotFoundError",
    "StorageError",
    "__version__",
    "configure",
    "jar_path",
    "spark_conf",
]
