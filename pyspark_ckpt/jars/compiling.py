"""Compile a jar of the shim, with the Scala compiler in PySpark, from the sources for one release of Spark.

The build backend loads this file alone, even where the package cannot be imported. It therefore imports nothing of the
package, and an older Python than the package supports can read it, so that pip can say that Python is too old.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BYTE_CODE = {"3.5": "8"}
"""The oldest Java of each release that runs on an older one than 17."""
NEWEST_BYTE_CODE = "17"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_FIRST_WITH_RELEASE = 9
"""The first Java whose compilers can target an older release."""


class JarError(Exception):
    """A jar cannot be made. The text says why, and what to do."""


def list_releases(sources: Path) -> list[str]:
    """Return the minor releases of Spark that there are sources for, oldest first."""
    return sorted((path.name[len("spark-") :] for path in sources.glob("spark-*")), key=_number)


def list_sources(sources: Path, minor: str) -> list[Path]:
    """Return the sources of one jar. Raises JarError (there are none for this release).

    Files that are the same for all are in ``main``. A folder ``spark-<release>`` has the files that are new or changed
    in that release: of files with one name, the newest that is not newer than ``minor`` counts.
    """
    known = list_releases(sources)
    if minor not in known:
        raise JarError(f"There are no sources for Spark {minor}, only for {', '.join(known)}.")
    chosen = {
        path.relative_to(folder): path
        for release in known
        if _number(release) <= _number(minor)
        for folder in [sources / f"spark-{release}"]
        for path in folder.rglob("*.scala")
    }
    return sorted([*chosen.values(), *(sources / "main").rglob("*.scala")])


def list_resources(sources: Path, tables: Path) -> dict[str, Path]:
    """Return what a jar has beside classes, by name. ``tables``: the folder of the tables that Python also reads."""
    folder = sources / "main" / "resources"
    return {
        **{f"pyspark_ckpt/{name}": tables / name for name in ("options.json", "metrics.json")},
        **{path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()},
    }


def find_byte_code(minor: str) -> str:
    """Return the oldest Java on which the jar of a release runs."""
    return BYTE_CODE.get(minor, NEWEST_BYTE_CODE)


def find_java(least: int) -> tuple[str, int]:
    """Return the path of a Java that is not older than ``least``, and its release. Raises JarError (there is none)."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    where = f"in JAVA_HOME, {home}" if home else "on PATH"
    wanted = f"Java {least} or newer is needed to build the jar of pyspark-ckpt"
    if java is None:
        raise JarError(f"{wanted}, but there is no java {where}: install it, or set JAVA_HOME.")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = _VERSION.search(told)
    if version is None or int(version[1]) < least:
        found = told.splitlines()[0] if told else "no Java"
        raise JarError(f"{wanted}, but {java} is {found}: install one, or set JAVA_HOME.")
    return java, int(version[1])


def compile_jar(minor: str, sources: Path, tables: Path, spark: Path, version: str, target: Path) -> None:
    """Make the jar ``target`` for a release, with the compiler and against the classes in the folder ``spark``.

    A half-written jar is never seen. ``version``: that of the package. Raises JarError.
    """
    java, release = find_java(int(find_byte_code(minor)))
    with tempfile.TemporaryDirectory() as scratch:
        classes = Path(scratch) / "classes"
        classes.mkdir()
        compiler = [java, "-Xss4m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        compiler += ["-cp", f"{spark}/*", "scala.tools.nsc.Main", "-usejavacp"]
        options = [*_name_release(java, release, find_byte_code(minor)), "-d", str(classes)]
        files = map(str, list_sources(sources, minor))
        done = subprocess.run([*compiler, *options, *files], capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-4000:]
            raise JarError(f"The shim does not compile against the jars in {spark}: {said}")
        write_jar(classes, list_resources(sources, tables), version, target)


def _name_release(java: str, release: int, wanted: str) -> Sequence[str]:
    """Return the options to compile for an older Java. A Java without the classes of others uses its own."""
    has_others = (Path(java).resolve().parent.parent / "lib" / "ct.sym").exists()
    is_known = release >= _FIRST_WITH_RELEASE and (str(release) == wanted or has_others)
    return ["-release", wanted] if is_known else []


def write_jar(classes: Path, resources: Mapping[str, Path], version: str, target: Path) -> None:
    """Put classes and resources into the jar."""
    target.parent.mkdir(parents=True, exist_ok=True)
    number, unfinished = tempfile.mkstemp(suffix=".part", dir=target.parent)
    os.close(number)
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as content:
            manifest = f"Manifest-Version: 1.0\nImplementation-Version: {version}\n\n"
            content.writestr("META-INF/MANIFEST.MF", manifest)
            for path in sorted(classes.rglob("*.class")):
                content.write(path, path.relative_to(classes).as_posix())
            for name, path in resources.items():
                content.write(path, name)
        Path(unfinished).chmod(0o644)
        Path(unfinished).replace(target)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _number(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))
