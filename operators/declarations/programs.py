"""Programs of users as bytes, which are sent to workers and to other processes."""

from __future__ import annotations

from typing import Any

from pyspark.serializers import CloudPickleSerializer

_SERIALIZER: Any = CloudPickleSerializer


def dump_program(program: object) -> bytes:
    """Return a user's program as PySpark sends it to workers. Raises what cloudpickle and the program raise."""
    dumped: bytes = _SERIALIZER().dumps(program)
    return dumped


def load_program(dumped: bytes) -> Any:
    """Return a new copy of the program."""
    return _SERIALIZER().loads(dumped)
