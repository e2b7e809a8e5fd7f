"""Every error that a docstring says is raised exists, and is raised somewhere."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping

from tests.checks.sources import parse_all

_PROMISE = re.compile(r"\bRaises\b(?P<rest>[^.]*(?:\.(?!\s)[^.]*)*)")
_ERROR = re.compile(r"\b[A-Z]\w*Error\b")


def find_problems() -> Iterator[str]:
    """A line for each promise of an error that nobody raises."""
    modules = list(parse_all())
    raised = {name for _, tree in modules for name in _errors_used(tree)}
    bases = {
        node.name: _bases_of(node) for _, tree in modules for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    raised |= {base for name in raised for base in _all_bases(name, bases)}
    for path, tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
                for name in sorted(find_promises(ast.get_docstring(node) or "") - raised):
                    if not hasattr(builtins, name):  # Python and libraries raise its own
                        why = "is not raised anywhere" if name in bases else "does not exist"
                        yield f"{path}:{getattr(node, 'lineno', 1)}: promises {name}, which {why}"


def find_promises(docstring: str) -> set[str]:
    """The errors that a docstring says are raised."""
    return {name for found in _PROMISE.finditer(docstring) for name in _ERROR.findall(found["rest"])}


def _bases_of(node: ast.ClassDef) -> set[str]:
    return {base.id for base in node.bases if isinstance(base, ast.Name)}


def _all_bases(name: str, bases: Mapping[str, set[str]]) -> set[str]:
    """The classes that are caught with an error."""
    direct = bases.get(name, set())
    return direct | {above for base in direct for above in _all_bases(base, bases)}


def _errors_used(tree: ast.Module) -> Iterator[str]:
    """Names of errors that are made, or raised, outside of docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name.endswith("Error"):
                yield name
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name):
            yield node.exc.id
