"""The processors of the documents, the examples and the notebooks, as classes that a test can run."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from tests.pages.documents import PAGES, ROOT, find_blocks
from tests.pages.steps import find_steps

_TUTORIAL = ROOT / "docs/tutorial.md"
_KINDS = ("KeyedProcessor", "VectorProcessor", "StatefulProcessor")
_PROGRAMS = [*(ROOT / "docs/examples").glob("*.py"), *(ROOT / "deploy").glob("*.py")]
_NOTEBOOKS = list((ROOT / "docs/notebooks").glob("*.ipynb"))


def list_processors() -> Iterator[tuple[str, str]]:
    """Yield each processor that readers can copy, by the path of its file and its name."""
    for path in sorted([*PAGES, *_PROGRAMS, *_NOTEBOOKS]):
        for text in _list_texts(path):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and any(_name_of(base) in _KINDS for base in node.bases):
                    yield str(path.relative_to(ROOT)), node.name


@cache
def load_names(path: str, version: int | None = None) -> Mapping[str, Any]:
    """Return what the classes of a file need, and themselves.

    ``version``: which of the tutorial's programs, which replace one another.
    """
    names: dict[str, Any] = {"ckpt": ckpt}  # fragments of README lack the import
    texts = list(_list_texts(ROOT / path))
    for text in texts if version is None else [texts[version]]:
        body = [node for node in ast.parse(text).body if _is_declared(node)]
        exec(compile(ast.Module(body, []), path, "exec"), names)  # noqa: S102 - as the page is run
    return names


def _list_texts(path: Path) -> Iterator[str]:
    if path == _TUTORIAL:
        yield from (step.body for step in find_steps(path) if step.name in {"first.py", "fraud.py"})
    elif path.suffix == ".md":
        yield from (block.code for block in find_blocks(path))
    elif path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    else:
        yield path.read_text(encoding="utf-8")


def _is_declared(node: ast.stmt) -> bool:
    """Whether a statement only gives a name to something, and starts nothing."""
    if isinstance(node, ast.Assign):
        return all(isinstance(each, ast.Name) and each.id.isupper() for each in node.targets)
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef))


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def process_alerts(alerts: Any) -> testing.Harness:  # noqa: ANN401 - of the program
    """Return the harness of ``Alerts`` of docs/examples/alerts.py, with the inputs that it has there."""
    stream = testing.keyed_inputs(
        merge=True,
        broadcast=testing.BroadcastColumns("carrier string, minutes int"),
        landings=testing.InputColumns(
            "tailnum string, dest string, air_time int, landed timestamp", by="tailnum", order_by="landed"
        ),
        departures=testing.InputColumns(
            "tailnum string, carrier string, dest string, left timestamp", by="tailnum", order_by="left"
        ),
    )
    output = "tailnum string, left timestamp, carrier string, was_in string, landed timestamp"
    return stream.process(alerts, output, "append")
