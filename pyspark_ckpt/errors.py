"""All errors of this package: few kinds, each of which calls for a different reaction."""

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
