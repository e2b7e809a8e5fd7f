"""A state store for PySpark Structured Streaming, and the call that installs it in a session.

::

    import pyspark_ckpt as ckpt
    from pyspark.sql import SparkSession

    spark = ckpt.configure(SparkSession.builder).getOrCreate()

``__init__.pyi`` lists the public names, which are imported on first use: importing this package imports neither PySpark
nor pyarrow, so that the state server, a separate process, starts quickly.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

import lazy_loader

__version__ = "0.1.0"

_import, _list_names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - each name is what its module has
    """Import a public name. Raises ProcessError if it needs PySpark, which is not installed."""
    if name == "DefaultSource":  # Spark looks for it in every package whose name begins with pyspark_
        from pyspark_ckpt.pyspark_releases import require_data_sources  # noqa: PLC0415 - for this name alone

        require_data_sources(f"{__name__}.{name}")
        from pyspark_ckpt.state_source import DefaultSource  # noqa: PLC0415 - of PySpark

        return DefaultSource
    try:
        return _import(name)
    except AttributeError as problem:
        raise AttributeError(f"{problem}{_find_elsewhere(name)}") from None


def _find_elsewhere(name: str) -> str:
    """Return what an error says of a name that one of the package's modules has; empty if none has it."""
    if name.startswith("_"):
        return ""
    for module in ("reading", "writing", "moving", "testing", "monitoring"):
        with suppress(ImportError):  # it needs a package that is not installed
            if name in import_module(f"{__name__}.{module}").__all__:
                return f". It is {__name__}.{module}.{name}"
    return ""


def __dir__() -> list[str]:
    return _list_names()
