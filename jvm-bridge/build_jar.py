"""Build the shim's jar with the Scala compiler that PySpark brings: for pip, and where neither sbt nor Maven is.

Run by ``make jar`` there. The compiler and every class the shim needs lie in PySpark's own folder of jars.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JAR = ROOT / "pyspark_ckpt" / "jars" / "pyspark-ckpt.jar"
MIN_JAVA = 17
_MAIN = ROOT / "jvm-bridge" / "src" / "main"
_OPTIONS = ROOT / "state_store" / "options.json"
_FOLDER = _MAIN / "resources"
RESOURCES = {
    "pyspark_ckpt/options.json": _OPTIONS,
    **{path.relative_to(_FOLDER).as_posix(): path for path in sorted(_FOLDER.rglob("*")) if path.is_file()},
}
_VERSION = re.compile(r'version "(\d+)')


def main() -> None:
    """Compile everything below src/main/scala, then write the jar."""
    java = find_java()
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"PySpark is not installed for {sys.executable}: its jars are what the shim is compiled against.")
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    sources = sorted(str(path) for path in (_MAIN / "scala").rglob("*.scala"))
    with tempfile.TemporaryDirectory() as classes:
        compiler = [java, "-Xss4m", "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
        done = subprocess.run([*compiler, "-release", str(MIN_JAVA), "-d", classes, *sources], check=False)
        if done.returncode:
            sys.exit(f"The shim does not compile against the jars in {jars}: see the messages above.")
        write_jar(Path(classes))


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


def is_current() -> bool:
    """Whether there is a jar as new as all its sources: what ``make`` asks."""
    sources = [_OPTIONS, *(path for path in _MAIN.rglob("*") if path.is_file())]
    return JAR.is_file() and JAR.stat().st_mtime >= max(path.stat().st_mtime for path in sources)


def write_jar(classes: Path) -> None:
    """Put the classes and the resources into the jar; a half-written jar is never seen."""
    JAR.parent.mkdir(parents=True, exist_ok=True)
    unfinished = JAR.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n\n")
        for path in sorted(classes.rglob("*.class")):
            jar.write(path, path.relative_to(classes).as_posix())
        for name, path in RESOURCES.items():
            jar.write(path, name)
    unfinished.replace(JAR)


if __name__ == "__main__":
    main()
