"""Build the shim's jar with the Scala compiler that PySpark brings: for machines with neither sbt nor Maven.

Run by ``make jar`` there. The compiler and every class the shim needs lie in PySpark's own folder of jars.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JAR = ROOT / "pyspark_ckpt" / "jars" / "pyspark-ckpt.jar"
_FOLDER = ROOT / "jvm-bridge" / "src" / "main" / "resources"
RESOURCES = {
    "pyspark_ckpt/options.json": ROOT / "state_store" / "options.json",
    **{path.relative_to(_FOLDER).as_posix(): path for path in sorted(_FOLDER.rglob("*")) if path.is_file()},
}


def main() -> None:
    """Compile everything below src/main/scala, then write the jar."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("PySpark is not installed for this Python: its jars are what the shim is compiled against.")
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    sources = sorted(str(path) for path in (ROOT / "jvm-bridge" / "src" / "main" / "scala").rglob("*.scala"))
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else Path("java")
    with tempfile.TemporaryDirectory() as classes:
        compiler = [str(java), "-Xss4m", "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
        subprocess.run([*compiler, "-release", "17", "-d", classes, *sources], check=True)
        write_jar(Path(classes))


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
