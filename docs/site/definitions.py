"""Where a public name is defined, found in the sources, without importing anything."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from docs.site.links import ROOT

PACKAGE = "pyspark_ckpt"


def find_definition(module: str, name: str) -> str:
    """The full name of what a module exports under ``name``. Raises ValueError if it has no such name."""
    if find_source(f"{module}.{name}") is not None and name not in _find_imports(module):
        return f"{module}.{name}"
    if name in _find_imports(module):
        origin = _find_imports(module)[name]
        return f"{origin}.{name}" if origin == module else find_definition(origin, name)
    source = find_source(module)
    if source is None or name not in _find_names(source):
        raise ValueError(f"{module} has no {name}")
    return f"{module}.{name}"


def find_source(module: str) -> Path | None:
    """The file of a module of this package; None if there is no such module."""
    parts = module.removeprefix(f"{PACKAGE}.").split(".") if module != PACKAGE else []
    top = ROOT if parts and (ROOT / parts[0] / "__init__.py").is_file() else ROOT / PACKAGE
    found = top.joinpath(*parts)
    candidates = (found / "__init__.py", found.with_suffix(".py"))
    return next((each for each in candidates if each.is_file()), None)


def _find_imports(module: str) -> dict[str, str]:
    """The names that a module imports from this package, each with the module that it comes from."""
    source = find_source(module)
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(_parse(source) if source else ast.Module([], []))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE)
        for alias in node.names
    }


def _find_names(source: Path) -> set[str]:
    """What a module defines at its top."""
    names = set()
    for node in _parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for each in targets if isinstance(each, ast.Name)}
    return names


@cache
def _parse(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))
