"""Let others go on between any two steps of the engine's code, not only where it waits.

A thread of Python may lose its turn between any two byte codes. The functions of some modules are compiled anew with a
point at which others may go on before each statement and after each read of an attribute. ``self.count += 1`` has one
between its read and its write. The source, its lines and what it computes stay as they are.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any

_POINT = "__let_others_go_on__"
_CHANGE = "__change_in_place_by_{}__"
_IN_PLACE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.iadd,
    ast.Sub: operator.isub,
    ast.BitAnd: operator.iand,
    ast.BitOr: operator.ior,
}


class _Steps(ast.NodeTransformer):
    """Adds the points to a module. Code outside of functions runs once, when it is imported, and gets none."""

    def __init__(self) -> None:
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._depth += 1
        node.body = self._split(node.body)
        self._depth -= 1
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self._depth += 1
        node.body = self.visit(node.body)
        self._depth -= 1
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return _call(_POINT, node) if self._depth and isinstance(node.ctx, ast.Load) else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        """Divide a change in place of an attribute into its read and its write."""
        target, name = node.target, _IN_PLACE.get(type(node.op))
        self.generic_visit(node)
        if not self._depth or name is None or not isinstance(target, ast.Attribute) or not _is_name(target.value):
            return node
        read = ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), node)
        changed = _call(_CHANGE.format(type(node.op).__name__), _call(_POINT, read), node.value)
        return ast.copy_location(ast.Assign([target], changed), node)

    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401
        found = super().visit(node)
        if self._depth:
            for name in ("body", "orelse", "finalbody"):
                if isinstance(node, ast.stmt | ast.ExceptHandler) and not isinstance(node, ast.FunctionDef):
                    body = getattr(node, name, None)
                    if isinstance(body, list):
                        setattr(node, name, _put_points(body))
        return found

    def _split(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return _put_points([self.visit(each) for each in body])


def _put_points(body: list[ast.stmt]) -> list[ast.stmt]:
    return [each for statement in body for each in (_point_before(statement), statement)]


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def _point_before(node: ast.stmt) -> ast.stmt:
    none = ast.copy_location(ast.Constant(None), node)
    return ast.copy_location(ast.Expr(_call(_POINT, none)), node)


def _call(function: str, *arguments: ast.expr) -> ast.expr:
    where = arguments[0]
    name = ast.copy_location(ast.Name(function, ast.Load()), where)
    return ast.copy_location(ast.Call(name, list(arguments), []), where)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _functions(owner: ModuleType | type, module: str) -> Iterator[FunctionType]:
    for each in list(vars(owner).values()):
        if isinstance(each, type) and each.__module__ == module and isinstance(owner, ModuleType):
            yield from _functions(each, module)
        for function in _within(each):
            if function.__module__ == module:
                yield function


def _within(value: object) -> Iterator[FunctionType]:
    value = inspect.unwrap(value) if callable(value) else value  # a context manager, a cache
    if isinstance(value, classmethod | staticmethod):
        yield from _within(value.__func__)
    elif isinstance(value, property):
        for each in filter(None, (value.fget, value.fset)):
            yield from _within(each)
    elif isinstance(value, cached_property):
        yield from _within(value.func)
    elif isinstance(value, FunctionType):
        yield value


class Steps:
    """The functions of some packages, in two forms: as they are, and with the points."""

    def __init__(self, *packages: str) -> None:
        """Compile the functions of all imported modules of ``packages``."""
        self._found: list[tuple[FunctionType, CodeType, CodeType]] = []
        for name, module in sorted(sys.modules.items()):
            if any(name == package or name.startswith(f"{package}.") for package in packages):
                self._found += _compile(module)

    @contextmanager
    def divided(self, let_others_go_on: Callable[[], object]) -> Iterator[None]:
        """Call ``let_others_go_on`` at each point for a while."""

        def pass_on(value: Any) -> Any:  # noqa: ANN401
            let_others_go_on()
            return value

        names = {_POINT: pass_on, **{_CHANGE.format(kind.__name__): change for kind, change in _IN_PLACE.items()}}
        vars(builtins).update(names)
        for function, _, code in self._found:
            function.__code__ = code
        try:
            yield
        finally:
            for function, code, _ in self._found:
                function.__code__ = code
            for name in names:
                del vars(builtins)[name]


def _compile(module: ModuleType) -> Iterator[tuple[FunctionType, CodeType, CodeType]]:
    if not module.__file__:
        return
    tree = _Steps().visit(ast.parse(inspect.getsource(module)))
    ast.fix_missing_locations(tree)
    codes = {(code.co_name, code.co_firstlineno): code for code in _codes(compile(tree, module.__file__, "exec"))}
    seen: set[int] = set()
    for function in _functions(module, module.__name__):
        code = codes.get((function.__code__.co_name, function.__code__.co_firstlineno))
        if code is not None and code.co_freevars == function.__code__.co_freevars and id(function) not in seen:
            seen.add(id(function))
            yield function, function.__code__, code
