"""The checks that packages of the shim import downwards, and that its rooms are small."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.checks import shim_layers, sizes
from tests.checks.sources import ROOT

TREE = Path("jvm-bridge/src/main/scala/org/apache/spark/sql/ckpt")
OURS = "org.apache.spark.sql.ckpt"


def _check(file: str, package: str, code: str) -> list[str]:
    return list(shim_layers.check_source(TREE / file, f"package {OURS}{package}\n\n{code}\n"))


@pytest.mark.parametrize(
    ("file", "package", "code", "above"),
    [
        ("rows/A.scala", ".rows", f"import {OURS}.store.CkptStateStore", "store is above rows"),
        ("rows/A.scala", ".rows", f"import {OURS}.store.{{RowIterator => Rows}}", "store is above rows"),
        (
            "rows/A.scala",
            ".rows",
            f"import {OURS}.{{\n  CkptErrors,\n  FencedCheckpointFileManager\n}}",
            "main package",
        ),
        ("rows/A.scala", ".rows", f"import {OURS}.store._", "store is above rows"),
        ("rows/A.scala", ".rows", f"import {OURS}._", "plan is above rows"),
        ("store/A.scala", ".store", f"import {OURS}.minor._", "minor.rules is above store"),
        ("store/A.scala", ".store", f"import {OURS}.minor", "minor.rules is above store"),
        ("rows/A.scala", ".rows", f"def f = {{\n  import {OURS}.store.RowIterator\n}}", "store is above rows"),
        ("rows/A.scala", ".rows", f"val a = new {OURS}.store.RowIterator", "store is above rows"),
        ("rows/A.scala", ".rows", 'val a = s"${sql.ckpt.store.RowIterator.name}"', "store is above rows"),
        ("minor/A.scala", ".minor", "import query.RunId", "minor.query is above minor"),
        ("minor/A.scala", ".minor", "val a = query.RunId.of(conf)", "minor.query is above minor"),
        ("CkptErrors.scala", "", "val a = fence.Fence.EpochKey", "fence is above (errors)"),
        ("plan/keyed/A.scala", ".plan.keyed", f"import {OURS}.plan.Extensions", "plan is above plan.keyed"),
        ("rows/A.scala", ".rows", f"import {OURS}.shelf.Book", "shelf is not in LAYERS"),
    ],
)
def test_what_goes_up_is_named(file: str, package: str, code: str, above: str) -> None:
    (found,) = _check(file, package, code)
    assert found.startswith(f"{TREE / file}:")
    assert above in found


@pytest.mark.parametrize(
    ("file", "package", "code"),
    [
        ("store/A.scala", ".store", f"import {OURS}.{{CkptErrors, CkptException}}\nimport {OURS}.rows.{{A, B}}"),
        ("store/A.scala", ".store", f"import {OURS}.minor.Helper.create\nimport {OURS}.minor.store.ReadStores"),
        ("rows/A.scala", ".rows", f'// import {OURS}.store.A\n/** {OURS}.store.A */\nval a = "{OURS}.store.A"'),
        ("rows/A.scala", ".rows", "import Cursors._\nstore.put(key)\nplan.A"),
        ("plan/A.scala", ".plan", f"import {OURS}.CkptStateStoreProvider\nimport {OURS}.plan.keyed._"),
        ("A.scala", "", "val a = store.RowIterator.of(fence)"),
    ],
)
def test_what_goes_down_is_left_alone(file: str, package: str, code: str) -> None:
    assert _check(file, package, code) == []


@pytest.mark.parametrize("package", ["", ".store", "\npackage rows"])
def test_one_clause_names_the_folder(package: str) -> None:
    (found,) = _check("rows/A.scala", package, "")
    assert "one clause names the folder" in found


def test_a_package_without_a_layer_is_named() -> None:
    (found,) = _check("shelf/A.scala", ".shelf", "")
    assert "shelf is not in LAYERS" in found


@pytest.mark.parametrize(
    ("paths", "problems"),
    [
        ([f"main/scala/a/F{number}.scala" for number in range(14)], ["14 files"]),
        ([f"spark-3.5/scala/a/F{number}.scala" for number in range(14)], ["14 files"]),
        ([f"test/scala/a/F{number}.scala" for number in range(14)], ["14 files"]),
        (["main/scala/a/F.scala"], ["1 file"]),
        (["spark-3.5/scala/a/F.scala", "spark-4.0/scala/a/F.scala"], ["1 file"]),
        (["spark-3.5/scala/a/F.scala", "main/scala/a/G.scala"], []),
        (["test/scala/a/F.scala"], []),
    ],
)
def test_rooms_have_two_to_thirteen_files(paths: Sequence[str], problems: Sequence[str]) -> None:
    found = list(sizes.check_scala_rooms(Path("jvm-bridge/src") / path for path in paths))
    assert [each.partition(": ")[2].partition(",")[0] for each in found] == problems


def test_the_page_has_what_each_file_of_the_oldest_releases_bridges() -> None:
    page = (ROOT / "docs/design/0015-one-jar-for-each-minor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)` \| .+? \| (?:([\d., ]+) )?\|$", page, re.MULTILINE)
    files = {
        tree.name.removeprefix("spark-"): {
            path.relative_to(tree / "scala" / Path(*OURS.split("."))).with_suffix("").as_posix()
            for path in tree.rglob("*.scala")
        }
        for tree in (ROOT / "jvm-bridge/src").glob("spark-*")
    }
    names = files["3.5"] | files["4.0"]
    having = {name: [release for release in sorted(files) if name in files[release]] for name in names}
    assert dict(rows) == {name: ", ".join(releases[1:]) for name, releases in having.items()}
