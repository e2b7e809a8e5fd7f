"""Build the shim's jars with the Scala compiler that PySpark brings: for a wheel, and where neither sbt nor Maven is.

There is one jar for each minor release of Spark: ``python jvm-bridge/build_jar.py 4.2 4.3``; without a release, that of
the installed PySpark. The compiler and every class the shim needs are in PySpark's own folder of jars.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JARS = ROOT / "pyspark_ckpt" / "jars"
SOURCES = ROOT / "jvm-bridge" / "src"
TABLES = ROOT / "state_store"

_PACKAGE_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


def _load_compiling() -> Any:  # noqa: ANN401 - a module
    """Return the module of the package that makes a jar. Nothing that the package needs is installed here."""
    spec = importlib.util.spec_from_file_location("compiling", JARS / "compiling.py")
    if spec is None or spec.loader is None:
        sys.exit(f"{JARS} has no compiling.py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_compiling = _load_compiling()


def main() -> None:
    """Build the jars of the releases that are named.

    With ``--sources``, only print the paths of one jar's sources; with ``--byte-code``, for which Java it is compiled.
    """
    arguments = sys.argv[1:]
    if arguments[:1] == ["--sources"]:
        print(*_compiling.list_sources(SOURCES, arguments[1]), sep="\n")
        return
    if arguments[:1] == ["--byte-code"]:
        print(_compiling.find_byte_code(arguments[1]))
        return
    installed = installed_spark()
    for minor in arguments or [installed[0] if installed else sys.exit(f"{sys.executable} has no PySpark.")]:
        build(minor)


def minors() -> list[str]:
    """Return the minor releases of Spark that there are sources for, oldest first."""
    found: list[str] = _compiling.list_releases(SOURCES)
    return found


def jar(minor: str) -> Path:
    """Return where the jar of a release is."""
    return JARS / f"pyspark-ckpt-spark-{minor}.jar"


def is_current(minor: str) -> bool:
    """Whether there is a jar as new as all its sources: what ``make`` asks."""
    resources = _compiling.list_resources(SOURCES, TABLES).values()
    found = [*resources, *_compiling.list_sources(SOURCES, minor)]
    made = jar(minor)
    return made.is_file() and made.stat().st_mtime >= max(path.stat().st_mtime for path in found)


def build(minor: str) -> None:
    """Compile the sources of a release, then write its jar. Fetches PySpark if the installed one is another."""
    with tempfile.TemporaryDirectory() as scratch:
        installed = installed_spark()
        spark = installed[1] if installed and installed[0] == minor else fetch_spark(minor, Path(scratch))
        try:
            _compiling.compile_jar(minor, SOURCES, TABLES, spark, _find_version(), jar(minor))
        except _compiling.JarError as problem:
            sys.exit(str(problem))


def require_java() -> None:
    """End the process with the reason if there is no Java that can build every jar."""
    try:
        _compiling.find_java(int(_compiling.NEWEST_BYTE_CODE))
    except _compiling.JarError as problem:
        sys.exit(str(problem))


def installed_spark() -> tuple[str, Path] | None:
    """Return the minor release of the PySpark of this interpreter, and its jars; None if there is none."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    version = re.search(r"""__version__.*["'](\d+\.\d+)""", (folder / "version.py").read_text(encoding="utf-8"))
    return (version[1], folder / "jars") if version else None


def fetch_spark(minor: str, folder: Path) -> Path:
    """Download the newest PySpark of a minor release, and return its folder of jars, below ``folder``."""
    print(f"Fetching the jars of PySpark {minor}: about 450 MB", flush=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--no-binary=pyspark", f"--dest={folder}", f"pyspark=={minor}.*"], check=False)
    if done.returncode:
        sys.exit(f"PySpark {minor} cannot be fetched: see the messages above.")
    (archive,) = folder.glob("pyspark-*.tar.gz")
    jars = folder / "jars"
    jars.mkdir()
    with tarfile.open(archive) as content:
        for member in content:
            if member.isfile() and member.name.endswith(".jar") and "/deps/jars/" in member.name:
                member.name = Path(member.name).name
                content.extract(member, jars, filter="data")
    return jars


def _find_version() -> str:
    """Return the version of the package, which sbt writes into the jar, too."""
    text = (ROOT / "pyspark_ckpt" / "__init__.py").read_text(encoding="utf-8")
    found = _PACKAGE_VERSION.search(text)
    if found is None:
        sys.exit("pyspark_ckpt/__init__.py has no __version__.")
    return found[1]


if __name__ == "__main__":
    main()
