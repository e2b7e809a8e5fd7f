"""Turns errors of the RocksDB binding into errors of this engine."""

from __future__ import annotations

from pyspark_ckpt.state_store.errors import FormatError, StorageError


class failures:  # noqa: N801 - used as a function
    """Turn errors of the binding while it does ``what`` into FormatError (corruption) or StorageError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is None or isinstance(problem, (StorageError, FormatError)) or not isinstance(problem, Exception):
            return
        if "Corruption" in str(problem):
            raise FormatError(f"Could not {self._what}: {problem}") from problem
        raise StorageError(f"Could not {self._what}: {problem}") from problem
