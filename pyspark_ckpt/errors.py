"""All errors of this package. There are few kinds, each for a different thing that you would do about it."""

from pyspark_ckpt.running.outcome import RescaleError
from pyspark_ckpt.state_store.errors import (
    CkptError,
    ConflictError,
    DamagedCopyError,
    FormatError,
    InternalError,
    InvalidInputError,
    LifecycleError,
    NotFoundError,
    ProcessError,
    StorageError,
)

__all__ = [
    "CkptError",
    "ConflictError",
    "DamagedCopyError",
    "FormatError",
    "InternalError",
    "InvalidInputError",
    "LifecycleError",
    "NotFoundError",
    "ProcessError",
    "RescaleError",
    "StorageError",
]
