"""A state store for PySpark Structured Streaming, and the call that gives it to a session.

::

    import pyspark_ckpt
    from pyspark.sql import SparkSession

    spark = pyspark_ckpt.configure(SparkSession.builder).getOrCreate()

Importing this package does not import PySpark: the state server, a process of its own, must start quickly.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from pyspark_ckpt.reading import StateReader, StoredState, open_state
    from pyspark_ckpt.state_source import register_state_source

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
    "StateReader",
    "StorageError",
    "StoredState",
    "__version__",
    "configure",
    "jar_path",
    "open_state",
    "register_state_source",
    "spark_conf",
]

_LAZY = {
    "StateReader": "pyspark_ckpt.reading",
    "StoredState": "pyspark_ckpt.reading",
    "open_state": "pyspark_ckpt.reading",
    "register_state_source": "pyspark_ckpt.state_source",
    # Spark looks for data sources in packages whose names begin with pyspark_, under this name.
    "DefaultSource": "pyspark_ckpt.state_source",
}
"""What takes pyarrow or PySpark, and where it is."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the above
    """Import what is not needed by all."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
