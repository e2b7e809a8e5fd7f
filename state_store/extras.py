"""Optional dependencies: which extra of the package brings which module."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from pyspark_ckpt.state_store.errors import ProcessError

EXTRAS: Mapping[str, str] = {"boto3": "s3", "hdfs_native": "hdfs", "pyspark": "spark"}
"""The extra of each module that the package works without."""


def require_extra(module: str, what: str) -> None:
    """Import ``module``, which ``what`` needs. Raises ProcessError that names the extra if it is not installed."""
    try:
        import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name != module:
            raise
        raise ProcessError(
            f"{what} needs the package {module.replace('_', '-')}, which {sys.executable} does not have.",
            hint=f'Install it there: pip install "pyspark-ckpt[{EXTRAS[module]}]".',
        ) from problem
