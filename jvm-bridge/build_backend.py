"""The build backend of pip: setuptools, which also builds the jars of those releases of Spark that are asked for.

Every wheel has the sources of the jars, so that a jar can be built where it is needed, by the PySpark that is there.
A wheel also has the jars that are asked for, and those that are there already. A jar that is as new as its sources is
taken as it is, as ``make`` does. Otherwise the Scala compiler inside that PySpark builds it, and PySpark is fetched.

A Python that is too old for the package must be able to read this file: pip then says what is wrong.
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
FOR = "spark"
"""The setting that names the releases of Spark: ``pip install . --config-settings spark=3.5,4.3``, or ``spark=all``."""


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what setuptools needs, and what has PySpark: itself, or for several releases pip to fetch each."""
    requires: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    missing = _missing(config_settings)
    if not missing:
        return requires
    build_jar.require_java()  # before anything is fetched for nothing
    return [*requires, f"pyspark=={missing[0]}.*" if len(missing) == 1 else "pip>=23"]


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
    """Return the releases that the wheel must be for: those that are named, and those that have a jar already."""
    known = build_jar.minors()
    named = str((config_settings or {}).get(FOR, ""))
    chosen = known if named == "all" else [minor.strip() for minor in named.split(",") if minor.strip()]
    return [*chosen, *(minor for minor in known if minor not in chosen and build_jar.jar(minor).exists())]


def _missing(config_settings: dict[str, Any] | None) -> list[str]:
    return [minor for minor in _wanted(config_settings) if not build_jar.is_current(minor)]
