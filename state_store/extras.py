"""Parts that may be missing: modules that the package's extras install, and its jar in a session."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError

EXTRAS: Mapping[str, str] = {
    "azure.identity": "azure",
    "azure.storage.blob": "azure",
    "boto3": "s3",
    "google.cloud.storage": "gcs",
    "hdfs_native": "hdfs",
    "hypothesis": "testing",
    "opentelemetry": "otel",
    "prometheus_client": "prometheus",
    "jinja2": "web",
    "psutil": "testing",
    "pyspark": "spark",
    "starlette": "web",
    "uvicorn": "web",
}
"""The extra that installs each optional module."""


def require_extra(module: str, what: str) -> None:
    """Import ``module``, which ``what`` needs. Raises ProcessError that names the extra if it is not installed."""
    try:
        import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module}.".startswith(f"{problem.name}."):
            raise
        package = module.replace("_", "-").replace(".", "-")
        raise ProcessError(
            f"{what} needs the package {package}, which {sys.executable} does not have.",
            hint=f'Install it there: pip install "pyspark-ckpt[{EXTRAS[module]}]".',
        ) from problem


def require_jar(*, is_there: bool) -> None:
    """Raise InvalidInputError unless a session, or its Spark Connect server, has the jar and its extensions."""
    if not is_there:
        raise InvalidInputError(
            "The session does not have the jar of pyspark-ckpt, or its extensions.",
            hint="Call pyspark_ckpt.configure(builder) before you create the session, or pyspark_ckpt.attach(spark) "
            "for a running one. A Spark Connect server needs all settings of spark_conf() when it starts.",
        )
