"""Find the jar for a release of Spark. A jar that the package lacks is built, once for each user of this machine."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pyspark_ckpt.jars.compiling import JarError, compile_jar, list_releases, list_resources, list_sources
from pyspark_ckpt.state_store import errors
from pyspark_ckpt.state_store.errors import InvalidInputError, NotFoundError, ProcessError
from pyspark_ckpt.state_store.log import LOGGER

JAR_OF = "pyspark-ckpt-spark-"
CACHE = "PYSPARK_CKPT_JARS"
"""The variable that names the folder of built jars."""

_log = logging.getLogger(f"{LOGGER}.jars")
_HERE = Path(__file__).resolve().parent
_TABLES = Path(errors.__file__).resolve().parent


def find_jar(minor: str, release: str, spark: Callable[[], Path], version: str) -> Path:
    """Return the jar for the PySpark of this ``release``.

    ``minor``: its minor release. ``spark``: finds the folder of Spark's jars, called if a jar has to be built.
    ``version``: the release of this package. Raises InvalidInputError (the package is not for this release of Spark),
    NotFoundError (the package has neither a jar nor sources), ProcessError (no jar can be built).
    """
    packaged = _HERE / f"{JAR_OF}{minor}.jar"
    if packaged.is_file():
        return packaged
    sources = _HERE / "sources"
    known = list_releases(sources)
    if not known:
        raise NotFoundError(
            f"{_HERE} has no jar for Spark {minor} and no sources.", hint="Install the package again, from its source."
        )
    if minor not in known:
        raise InvalidInputError(
            f"PySpark {release} is installed, but this pyspark-ckpt is for Spark {', '.join(known)}.",
            hint="Install one of these, or a pyspark-ckpt for the installed one.",
        )
    name = f"{version}-{_sum_up(sources, minor, release)}/{JAR_OF}{minor}.jar"
    folders = list(_list_folders())
    built = next((folder / name for folder in folders if (folder / name).is_file()), None)
    return built or _build(minor, sources, spark(), version, [folder / name for folder in folders])


def _list_folders() -> Iterator[Path]:
    """Yield the folders that a jar may be in. The next one is used only if the one before cannot be written to."""
    if given := os.environ.get(CACHE):
        yield Path(given)
        return
    with suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyspark-ckpt"
    yield _HERE / "built"


def _sum_up(sources: Path, minor: str, release: str) -> str:
    """Return a checksum of all that a jar is made of, so that another package or another Spark gets another jar."""
    found = hashlib.sha256(release.encode())
    for path in (*list_sources(sources, minor), *list_resources(sources, _TABLES).values()):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _build(minor: str, sources: Path, spark: Path, version: str, targets: list[Path]) -> Path:
    target = _find_writable(targets)
    _log.warning("Building the jar of pyspark-ckpt for Spark %s, once for this user. It takes half a minute", minor)
    begun = time.monotonic()
    try:
        compile_jar(minor, sources, _TABLES, spark, version, target)
    except (JarError, OSError) as problem:
        raise ProcessError(
            f"The jar of pyspark-ckpt for Spark {minor} cannot be built: {problem}",
            hint="You can also install a wheel that has the jar: see docs/deploying.md.",
        ) from problem
    _log.warning("The jar is %s. Building it took %.0f s", target, time.monotonic() - begun)
    return target


def _find_writable(targets: list[Path]) -> Path:
    """Return the first of ``targets`` that can be written. Raises ProcessError (none)."""
    reasons = []
    for target in targets:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            reasons.append(f"{problem.strerror}: {target.parent}")
            continue
        if os.access(target.parent, os.W_OK):
            return target
        reasons.append(f"Permission denied: {target.parent}")
    raise ProcessError(
        f"No folder for the jar of pyspark-ckpt can be written to ({'; '.join(reasons)}).",
        hint=f"Set the variable {CACHE} to a folder that this user can write to.",
    )
