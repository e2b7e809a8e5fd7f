"""Which names are public, and where each is defined: found in the sources, without importing anything."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from docs.site.links import ROOT

PACKAGE = "pyspark_ckpt"
_FACE = ROOT / PACKAGE / "__init__.pyi"
"""The list of the names at the top."""


def list_names(page: dict[str, Any]) -> list[tuple[str, str]]:
    """The names that a page of the API shows, each with the module from which users import it.

    ``section``: the heading in the list of the names at the top. ``modules``: modules of which all public names are
    shown. ``more``: names of other modules.
    """
    found = [(PACKAGE, name) for name in _list_sections().get(page.get("section", ""), [])]
    at_top = {name for _, name in found}
    for module in page.get("modules", []):
        found += [(module, name) for name in _read_all(module) if name not in at_top]
    return found + [(name.rpartition(".")[0], name.rpartition(".")[2]) for name in page.get("more", [])]


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
    found = ROOT.joinpath(*module.split("."))
    candidates = (found / "__init__.py", found.with_suffix(".py"))
    return next((each for each in candidates if each.is_file()), None)


def _list_sections() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in _FACE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and line != "# isort: off":
            heading = line.removeprefix("# ")
        elif found := re.fullmatch(r"from \S+ import (\w+) as \w+", line) or re.fullmatch(r"(\w+): \w+", line):
            sections.setdefault(heading, []).append(found[1])
    return sections


def _read_all(module: str) -> list[str]:
    source = find_source(module)
    for node in _parse(source).body if source else []:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return list(map(str, ast.literal_eval(node.value)))
    raise ValueError(f"{module} has no __all__")


def _find_imports(module: str) -> dict[str, str]:
    """The names that a module imports from this package, each with the module that it comes from."""
    source = _FACE if module == PACKAGE else find_source(module)
    return {
        alias.asname or alias.name: origin
        for node in ast.walk(_parse(source) if source else ast.Module([], []))
        if isinstance(node, ast.ImportFrom) and node.module
        for origin in [f"{PACKAGE}.{node.module}" if node.level else node.module]
        if origin.startswith(PACKAGE)
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
