"""The jar that a package without one builds when it is asked for."""

from __future__ import annotations

import logging
import shutil
import zipfile
from pathlib import Path

import pytest

from pyspark_ckpt.jars import finding
from pyspark_ckpt.jars.finding import CACHE, find_jar
from pyspark_ckpt.pyspark_releases import find_jars_of_spark, find_minor_release, find_release
from pyspark_ckpt.session import jar_path
from pyspark_ckpt.state_store.errors import ProcessError

SOURCES = Path(__file__).parents[2] / "jvm-bridge" / "src"
PROVIDER = "org/apache/spark/sql/ckpt/CkptStateStoreProvider.class"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package without a jar."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "sources").symlink_to(SOURCES)
    monkeypatch.setattr(finding, "_HERE", folder)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return folder


@pytest.mark.slow
@pytest.mark.in_turn
def test_a_jar_is_built_once_and_has_all_classes(
    package: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packaged = Path(finding.__file__).parent / f"pyspark-ckpt-spark-{find_minor_release()}.jar"
    with caplog.at_level(logging.WARNING, "pyspark_ckpt"):
        found = Path(jar_path())
        assert found.is_relative_to(tmp_path / "cache")
        assert Path(jar_path()) == found
    assert caplog.text.count("Building the jar of pyspark-ckpt for Spark") == 1
    assert list(package.iterdir()) == [package / "sources"]
    with zipfile.ZipFile(found) as built:
        names = set(built.namelist())
        assert PROVIDER in names
        assert b"Implementation-Version: " in built.read("META-INF/MANIFEST.MF")
    if packaged.exists():  # by sbt, or by this compiler
        with zipfile.ZipFile(packaged) as ours:
            assert {name for name in ours.namelist() if not name.endswith("/")} <= names
    assert [path.name for path in found.parent.iterdir()] == [found.name]


def test_a_jar_that_cannot_be_built_says_why_and_leaves_nothing(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        ProcessError, match=r"cannot be built: Java \d+ or newer is needed .* no java on PATH"
    ) as caught:
        jar_path()
    assert "\n" not in str(caught.value)
    assert package.exists()
    assert not list((tmp_path / "cache").rglob("*.*ar*"))


@pytest.mark.in_turn
def test_sources_that_do_not_compile_are_shown(package: Path, tmp_path: Path) -> None:
    (package / "sources").unlink()
    shutil.copytree(SOURCES, package / "sources", ignore=shutil.ignore_patterns("*.scala"))
    (package / "sources/main/scala").mkdir(parents=True, exist_ok=True)
    (package / "sources/main/scala/Wrong.scala").write_text("class Wrong { val x: Int = missing }\n")
    with pytest.raises(ProcessError, match=r"(?s)does not compile against the jars in .*not found: value missing"):
        jar_path()
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_a_folder_that_cannot_be_written_names_the_variable(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert package.exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE, str(tmp_path / "file" / "folder"))
    with pytest.raises(ProcessError, match=rf"No folder for the jar .*file/folder.*variable {CACHE}"):
        jar_path()


def test_other_sources_and_other_releases_have_jars_of_their_own(package: Path, tmp_path: Path) -> None:
    """So an upgrade of either does not use what is left of the one before."""
    minor, release = find_minor_release(), find_release()
    names = {finding._sum_up(SOURCES, minor, each) for each in (release, f"{release}.1")}
    (package / "sources").unlink()
    shutil.copytree(SOURCES, package / "sources")
    assert finding._sum_up(package / "sources", minor, release) in names
    with next((package / "sources/main").rglob("*.scala")).open("a") as source:
        source.write("// another\n")
    names.add(finding._sum_up(package / "sources", minor, release))
    assert len(names) == 3
    for name in names:
        made = tmp_path / "cache" / f"0.1.0-{name}" / f"pyspark-ckpt-spark-{minor}.jar"
        made.parent.mkdir(parents=True)
        made.touch()
    assert find_jar(minor, release, find_jars_of_spark, "0.1.0").exists()
