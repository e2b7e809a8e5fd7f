"""What pip makes of a checkout: a wheel with the jar, or the reason why there is none."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPILING = ROOT / "pyspark_ckpt" / "jars" / "compiling.py"
JAR = "pyspark_ckpt/jars/pyspark-ckpt-spark-4.3.jar"
PROVIDER = "org/apache/spark/sql/ckpt/CkptStateStoreProvider.class"
LEFT_OUT = (".*", "build", "dist", "*.egg-info", "__pycache__", "target", "tests", "integration", "bench")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout, in which something can be built."""
    return Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=shutil.ignore_patterns(*LEFT_OUT)))


def build_wheel(source: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build with what is installed here, into a folder beside ``source``."""
    call = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    own = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} if environment else os.environ
    return subprocess.run(
        [*call, "--disable-pip-version-check", "--wheel-dir", str(source.parent / "wheels"), *arguments, str(source)],
        capture_output=True,
        text=True,
        check=False,
        env={**own, **environment},
    )


def names_in_jar(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as content, content.open(JAR) as jar, zipfile.ZipFile(jar) as inner:
        return set(inner.namelist())


def test_a_wheel_has_all_modules_the_jar_the_types_and_what_it_reads(checkout: Path) -> None:
    done = build_wheel(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (checkout.parent / "wheels").iterdir()
    assert PROVIDER in names_in_jar(wheel)
    with zipfile.ZipFile(wheel) as content:
        read = {"py.typed", "state_store/options.json", "state_store/metrics.json"}
        shown = {"metrics/alerts.yml", "metrics/dashboard.json"}
        assert {f"pyspark_ckpt/{name}" for name in read | shown} <= set(content.namelist())
        of_the_page = (ROOT / "pyspark_ckpt/web/static", ROOT / "pyspark_ckpt/web/templates")
        files = {str(path.relative_to(ROOT)) for folder in of_the_page for path in folder.iterdir()}
        modules = {str(path.relative_to(ROOT)) for path in (ROOT / "pyspark_ckpt").rglob("*.py")}
        for linked in ("state_store", "operators"):
            modules |= {f"pyspark_ckpt/{path.relative_to(ROOT)}" for path in (ROOT / linked).rglob("*.py")}
        assert files | modules <= set(content.namelist())
        assert all(name.startswith("pyspark_ckpt") for name in content.namelist())


@pytest.mark.in_turn
def test_a_wheel_of_a_source_distribution_has_the_sources_of_the_jars(checkout: Path) -> None:
    """It is built without Java and without PySpark."""
    for each in (checkout / JAR).parent.glob("*.jar"):
        each.unlink()
    code = "import sys; sys.path.insert(0, 'jvm-bridge'); import build_backend; build_backend.build_sdist('..')"
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True, capture_output=True)
    (archive,) = checkout.parent.glob("*.tar.gz")
    unpacked = checkout.parent / "unpacked"
    with tarfile.open(archive) as content:
        content.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    assert not (source / JAR).exists()
    done = build_wheel(source, PATH=str(checkout.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (unpacked / "wheels").iterdir()
    folder = ROOT / "jvm-bridge" / "src"
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(folder / "test")]
    wanted = {f"pyspark_ckpt/jars/sources/{path.relative_to(folder)}" for path in files}
    with zipfile.ZipFile(wheel) as content:
        found = {name for name in content.namelist() if name.startswith("pyspark_ckpt/jars/")}
    assert found == wanted | {f"pyspark_ckpt/jars/{path.name}" for path in (ROOT / "pyspark_ckpt/jars").glob("*.py")}


def test_what_builds_the_package_can_be_read_by_an_older_python() -> None:
    """So that pip says which Python the package needs, and does not end in a syntax error."""
    for path in (ROOT / "jvm-bridge/build_backend.py", ROOT / "jvm-bridge/build_jar.py", COMPILING):
        ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.in_turn
@pytest.mark.parametrize("version", [None, "11.0.2"])
def test_a_build_of_a_jar_without_java_says_so_and_leaves_no_wheel(version: str | None, checkout: Path) -> None:
    (checkout / JAR).unlink()
    programs = checkout.parent / "programs"
    programs.mkdir()
    if version is not None:
        (programs / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        (programs / "java").chmod(0o700)
    done = build_wheel(checkout, "--config-settings", "spark=4.3", PATH=str(programs))
    assert done.returncode != 0
    (line,) = (line for line in (done.stdout + done.stderr).splitlines() if "Java 17 or newer is needed" in line)
    assert (version or "no java on PATH") in line
    assert not list(checkout.parent.rglob("*.whl"))


def test_a_jar_older_than_its_sources_is_not_taken(checkout: Path) -> None:
    for other in (checkout / JAR).parent.glob("*.jar"):
        if other.name != Path(JAR).name:
            other.unlink()
    source = next((checkout / "jvm-bridge" / "src" / "main").rglob("*.scala"))
    os.utime(source, (later := (checkout / JAR).stat().st_mtime + 10, later))
    done = build_wheel(checkout, PATH=str(checkout.parent))
    assert done.returncode != 0
    assert "Java 17 or newer is needed" in done.stdout + done.stderr
