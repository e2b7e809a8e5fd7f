"""What differs among releases of PySpark is in one module, so that no other one breaks with the oldest of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tests.checks.sources import parse_all

HOME = "pyspark_ckpt/pyspark_releases.py"
"""The only module that asks which release is installed."""
NEWER: Mapping[str, str] = {
    "pyspark.sql.classic": "",
    "pyspark.sql.conversion": "",
    "pyspark.sql.datasource": "pyspark_ckpt/state_source.py",
    "pyspark.sql.streaming.stateful_processor": "operators/stateful/",
    "pyspark.sql.types.CalendarIntervalType": "",
    "pyspark.sql.types.GeographyType": "",
    "pyspark.sql.types.GeometryType": "",
    "pyspark.sql.types.TimeType": "",
    "pyspark.sql.types.VariantType": "",
    "pyspark.sql.types.VariantVal": "operators/stateful/",
}
"""What PySpark 3.5 lacks, each with the sources that may import it, as they run only with a release that has it."""
_RELEASES = {"find_release", "find_minor_release"}
_SESSIONS = {"spark", "session", "sparkContext", "context"}
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError"}


def find_problems() -> Iterator[str]:
    """A line for each place that depends on the release of PySpark, outside of the module for it."""
    for path, tree in parse_all():
        if path != HOME:
            yield from check_module(path, tree)


def check_module(path: str, tree: ast.Module) -> Iterator[str]:
    """A line for each such place of a module."""
    for node in _walk_running_code(tree):
        if _asks_for_release(node):
            yield f"{path}:{node.lineno}: asks for the release of PySpark: ask {HOME} for the feature"
        elif isinstance(node, ast.Try) and _catches_missing_imports(node):
            yield f"{path}:{node.lineno}: imports of PySpark what may be missing: {HOME} does that"
        for name in _list_imports(node):
            newer, where = next(
                ((each, at) for each, at in NEWER.items() if f"{name}.".startswith(f"{each}.")), ("", "")
            )
            if newer and not (where and path.startswith(where)):
                yield f"{path}:{node.lineno}: imports {newer}, which not every release of PySpark has: use {HOME}"


def _walk_running_code(tree: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """All nodes but those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, (ast.stmt, ast.expr)):
            yield node
        yield from _walk_running_code(node)


def _asks_for_release(node: ast.AST) -> bool:
    if any(
        name in {"pyspark.__version__", "pyspark.version"} or name.startswith("pyspark.version.")
        for name in _list_imports(node)
    ):
        return True
    if isinstance(node, ast.Attribute) and node.attr == "__version__":
        return isinstance(node.value, ast.Name) and node.value.id == "pyspark"
    if not isinstance(node, ast.Compare):
        return False
    return any(_is_release(each) for side in (node.left, *node.comparators) for each in ast.walk(side))


def _is_release(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _RELEASES
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "version"
        and getattr(node.value, "id", getattr(node.value, "attr", "")) in _SESSIONS
    )


def _catches_missing_imports(node: ast.Try) -> bool:
    caught = {each.id for one in node.handlers if one.type for each in ast.walk(one.type) if isinstance(each, ast.Name)}
    body = (each for one in node.body for each in ast.walk(one))
    return bool(caught & _IMPORT_ERRORS) and any(
        name.split(".")[0] == "pyspark" for each in body for name in _list_imports(each)
    )


def _list_imports(node: ast.AST) -> Iterator[str]:
    """The dotted names that a node imports."""
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (f"{node.module}.{each.name}" for each in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
        if isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)
    elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("types.", "pyspark.sql.types.")):
        yield f"pyspark.sql.types.{node.attr}"
