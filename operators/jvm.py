"""Calls into the JVM shim from Spark's driver."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from pyspark_ckpt.state_store.errors import InvalidInputError


def shim(jvm: Any, name: str, method: str) -> Any:
    """Return the shim's JVM object ``name``, relative to our package. It must have ``method``.

    Raises InvalidInputError if the jar is missing.
    """
    found = attrgetter(name)(jvm.org.apache.spark.sql.ckpt)
    if not callable(getattr(found, method, None)):
        raise InvalidInputError(
            "The session does not have the jar of pyspark-ckpt on its class path.",
            hint="Call pyspark_ckpt.configure(builder) before you create the session.",
        )
    return found
