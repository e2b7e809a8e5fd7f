"""Calls of the shim, from Spark's driver."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from pyspark_ckpt.state_store.errors import InvalidInputError


def shim(jvm: Any, name: str, method: str) -> Any:
    """One of our objects in the JVM, named from our package on, which has this method.

    Raises InvalidInputError without the jar.
    """
    found = attrgetter(name)(jvm.org.apache.spark.sql.ckpt)
    if not callable(getattr(found, method, None)):
        raise InvalidInputError(
            "The session does not have the jar of pyspark-ckpt on its class path.",
            hint="Call pyspark_ckpt.configure(builder) before the session is made.",
        )
    return found
