"""The build backend of pip: setuptools, which also builds the jar, so that no wheel lacks it.

A jar that is as new as its sources is taken as it is, as ``make`` does. Otherwise the Scala compiler inside PySpark
builds it, and PySpark is a requirement of the build. A source distribution holds the sources of the jar. An editable
install leaves the jar to ``make jar``, so that it stays quick.
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

PYSPARK = "pyspark>=4.3,<4.4"
JAR_IN_WHEEL = "pyspark_ckpt/jars/pyspark-ckpt.jar"


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what setuptools needs, and PySpark if the jar has to be built."""
    requires: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if build_jar.is_current():
        return requires
    build_jar.find_java()  # before PySpark is fetched for nothing
    return [*requires, PYSPARK]


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the jar if that is needed, and the wheel. Ends with the reason if the wheel could not have the jar."""
    if not build_jar.is_current():
        build_jar.main()
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    wheel = Path(wheel_directory) / name
    with zipfile.ZipFile(wheel) as content:
        has_jar = JAR_IN_WHEEL in content.namelist()
    if not has_jar:
        wheel.unlink()
        sys.exit(f"{wheel} would not have {JAR_IN_WHEEL}: see [tool.setuptools.package-data] in pyproject.toml.")
    return name
