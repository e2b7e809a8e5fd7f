"""The build backend of pip: setuptools, which also builds the jars, so that no wheel lacks one.

A wheel has one jar for each minor release of Spark. A jar that is as new as its sources is taken as it is, as ``make``
does. Otherwise the Scala compiler inside that PySpark builds it, and PySpark is fetched if it is not installed. A
source distribution holds the sources of the jars. An editable install leaves them to ``make jar``, so that it stays
quick.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import build_jar
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

JARS = "pyspark_ckpt/jars"
ONLY = "spark"
"""The setting that names the only releases to build for: ``pip install . --config-settings spark=4.3``."""


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what setuptools needs."""
    if _missing(config_settings):
        build_jar.find_java()  # before anything is fetched for nothing
    requires: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return requires


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the jars that are needed, and the wheel. Ends with the reason if the wheel could not have the jars."""
    for minor in _missing(config_settings):
        build_jar.build(minor)
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    wheel = Path(wheel_directory) / name
    wanted = {f"{JARS}/{build_jar.jar(minor).name}" for minor in _wanted(config_settings)}
    with zipfile.ZipFile(wheel) as content:
        lacks = wanted.difference(content.namelist())
    if lacks:
        wheel.unlink()
        sys.exit(f"{wheel} would lack {sorted(lacks)}: see [tool.setuptools.package-data] in pyproject.toml.")
    return name


def _wanted(config_settings: dict[str, Any] | None) -> list[str]:
    only = str((config_settings or {}).get(ONLY, ""))
    return [minor.strip() for minor in only.split(",") if minor.strip()] or build_jar.minors()


def _missing(config_settings: dict[str, Any] | None) -> list[str]:
    return [minor for minor in _wanted(config_settings) if not build_jar.is_current(minor)]
