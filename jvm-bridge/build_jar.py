"""Build the shim's jars with the Scala compiler that PySpark brings: for pip, and where neither sbt nor Maven is.

There is one jar for each minor release of Spark: ``python jvm-bridge/build_jar.py 4.2 4.3``; without a release, that of
the installed PySpark. The compiler and every class the shim needs are in PySpark's own folder of jars.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIN_JAVA = 17
_SOURCES = ROOT / "jvm-bridge" / "src"
_TABLES = ROOT / "state_store"
_FOLDER = _SOURCES / "main" / "resources"
RESOURCES = {
    **{f"pyspark_ckpt/{name}": _TABLES / name for name in ("options.json", "metrics.json")},
    **{path.relative_to(_FOLDER).as_posix(): path for path in sorted(_FOLDER.rglob("*")) if path.is_file()},
}
BYTE_CODE = {"3.5": "8"}
"""The oldest Java of those releases that run on an older one than 17."""

_PACKAGE_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_VERSION = re.compile(r'version "(\d+)')


def main() -> None:
    """Build the jars of the releases that are named.

    With ``--sources``, only print the paths of one jar's sources; with ``--byte-code``, for which Java it is compiled.
    """
    arguments = sys.argv[1:]
    if arguments[:1] == ["--sources"]:
        print(*sources(arguments[1]), sep="\n")
        return
    if arguments[:1] == ["--byte-code"]:
        print(byte_code(arguments[1]))
        return
    installed = installed_spark()
    for minor in arguments or [installed[0] if installed else sys.exit(f"{sys.executable} has no PySpark.")]:
        build(minor)


def minors() -> list[str]:
    """Return the minor releases of Spark that there are sources for, oldest first."""
    return sorted((path.name.removeprefix("spark-") for path in _SOURCES.glob("spark-*")), key=_number)


def sources(minor: str) -> list[Path]:
    """Return the sources of one jar.

    What is the same for all is in ``main``. A folder ``spark-<release>`` has the files that are new in that release, or
    have changed in it: of files with one name, that of the newest release counts that is not newer than ``minor``.
    """
    if minor not in minors():
        sys.exit(f"There are no sources for Spark {minor}: there are those for {', '.join(minors())}.")
    chosen = {
        path.relative_to(folder): path
        for release in minors()
        if _number(release) <= _number(minor)
        for folder in [_SOURCES / f"spark-{release}"]
        for path in folder.rglob("*.scala")
    }
    return sorted([*chosen.values(), *(_SOURCES / "main").rglob("*.scala")])


def byte_code(minor: str) -> str:
    """Return the oldest Java on which the jar of a release runs."""
    return BYTE_CODE.get(minor, str(MIN_JAVA))


def jar(minor: str) -> Path:
    """Return where the jar of a release is."""
    return ROOT / "pyspark_ckpt" / "jars" / f"pyspark-ckpt-spark-{minor}.jar"


def is_current(minor: str) -> bool:
    """Whether there is a jar as new as all its sources: what ``make`` asks."""
    found = [*RESOURCES.values(), *sources(minor)]
    made = jar(minor)
    return made.is_file() and made.stat().st_mtime >= max(path.stat().st_mtime for path in found)


def build(minor: str) -> None:
    """Compile the sources of a release, then write its jar. Fetches PySpark if the installed one is another."""
    java = find_java()
    with tempfile.TemporaryDirectory() as scratch:
        installed = installed_spark()
        jars = installed[1] if installed and installed[0] == minor else fetch_spark(minor, Path(scratch))
        classes = Path(scratch) / "classes"
        classes.mkdir()
        compiler = [java, "-Xss4m", "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
        files = map(str, sources(minor))
        done = subprocess.run([*compiler, "-release", byte_code(minor), "-d", str(classes), *files], check=False)
        if done.returncode:
            sys.exit(f"The shim does not compile against the jars in {jars}: see the messages above.")
        write_jar(classes, jar(minor))


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


def find_java() -> str:
    """Return the path of a Java that can build the jar. Ends the process with the reason if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    where = f"in JAVA_HOME, {home}" if home else "on PATH"
    wanted = f"Java {MIN_JAVA} or newer is needed to build the jar of pyspark-ckpt"
    if java is None:
        sys.exit(f"{wanted}, and there is no java {where}: install it, or set JAVA_HOME.")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = _VERSION.search(told)
    if version is None or int(version[1]) < MIN_JAVA:
        sys.exit(
            f"{wanted}, and {java} is {told.splitlines()[0] if told else 'no Java'}: install one, or set JAVA_HOME."
        )
    return java


def write_jar(classes: Path, target: Path) -> None:
    """Put the classes and the resources into the jar; a half-written jar is never seen."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as content:
        manifest = f"Manifest-Version: 1.0\nImplementation-Version: {_find_version()}\n\n"
        content.writestr("META-INF/MANIFEST.MF", manifest)
        for path in sorted(classes.rglob("*.class")):
            content.write(path, path.relative_to(classes).as_posix())
        for name, path in RESOURCES.items():
            content.write(path, name)
    unfinished.replace(target)


def _find_version() -> str:
    """Return the version of the package, which sbt writes into the jar, too."""
    text = (ROOT / "pyspark_ckpt" / "__init__.py").read_text(encoding="utf-8")
    found = _PACKAGE_VERSION.search(text)
    if found is None:
        sys.exit("pyspark_ckpt/__init__.py has no __version__.")
    return found[1]


def _number(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))


if __name__ == "__main__":
    main()
