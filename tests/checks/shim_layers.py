"""Packages of the shim import packages below them, never above, so there are no circles.

What a file can name without an import counts, too: packages inside its own one. So each file has one package clause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.checks.sources import ROOT, list_scala

HERE = "LAYERS of tests/checks/shim_layers.py"
BASE = "org.apache.spark.sql.ckpt"
ERRORS = "(errors)"
"""What is in the main package and imports nothing: everything else may use it."""
ERROR_NAMES = {"CkptErrors", "CkptException", "StateServerLostException"}
LAYERS = (
    "plan",  # the extensions, and what Python calls
    "plan.batches",
    "plan.queries",
    "plan.inputs",
    "minor.rules",  # rules that only older releases need
    "plan.keyed",
    "plan.keyed.worker",
    "",  # the two classes that users name
    "changes",
    "store",
    "transactions",
    "minor.store",
    "fence",
    "server",
    "rows",
    "codec",
    "minor.plans",
    "minor.codec",
    "minor.query",
    "settings",
    "minor",  # other names of classes
    ERRORS,
)
"""From top to bottom, by the name of the package after that of the main one."""

_CLAUSE = re.compile(r"^package (object )?([\w.]+)", re.MULTILINE)
_IMPORT = re.compile(r"^\s*import (.+?(?:\{[^}]*\})?)$", re.MULTILINE)
_CLASS = re.compile(r"(?<![\w.])[a-z]\w*(?:\.[a-z]\w*)*\.[A-Z]\w*")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_TEXT = re.compile(r'"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"')
_CODE_IN_TEXT = re.compile(r"\$\{([^}]*)\}")


def find_problems() -> Iterator[str]:
    """A line for each package clause that does not name the file's folder, and for each import that goes up."""
    for path in list_scala():
        file = path.relative_to(ROOT)
        if file.parts[2] != "test":  # a test may use everything
            yield from check_source(file, path.read_text(encoding="utf-8"))


def check_source(file: Path, source: str) -> Iterator[str]:
    """A line for each problem of a file. ``file``: its path from the root of the repository."""
    package = ".".join(file.parent.parts[file.parts.index("scala") + 1 :])
    code = _blank(source)
    clauses = [f"{BASE}.{name}" if is_object else name for is_object, name in _CLAUSE.findall(code)]
    if clauses[-1:] != [package] or len(clauses) != (2 if file.name == "package.scala" else 1):
        yield f"{file}: package {', '.join(clauses)}: one clause names the folder, {package}"
        return
    room = ERRORS if file.name == "CkptErrors.scala" else package.removeprefix(BASE).removeprefix(".")
    if room not in LAYERS:
        yield f"{file}: {room} is not in {HERE}: say what is above and below it"
        return
    for line, name in _list_names(code):
        for target in _resolve(room, name):
            if target not in LAYERS:
                yield f"{file}:{line}: imports {name}: {target} is not in {HERE}"
            elif target != room and LAYERS.index(target) < LAYERS.index(room):
                above, below = (each or "the main package" for each in (target, room))
                yield f"{file}:{line}: imports {name}: {above} is above {below} in {HERE}"


def _blank(source: str) -> str:
    """The source without comments and texts. Lines stay, and code in texts does."""

    def blank(found: re.Match[str]) -> str:
        kept = " ".join(_CODE_IN_TEXT.findall(found[0])) if found[0].startswith('"') else ""
        return kept + "\n" * (found[0].count("\n") - kept.count("\n"))

    return _COMMENT.sub(blank, _TEXT.sub(blank, source))


def _list_names(code: str) -> Iterator[tuple[int, str]]:
    """The dotted names that a file imports, or uses without an import, each with its line. ``_`` is a wildcard."""
    for found in _IMPORT.finditer(code):
        line = code.count("\n", 0, found.start(1)) + 1
        for clause in re.split(r",(?![^{]*\})", found[1]):
            path, _, selectors = clause.strip().partition("{")
            for each in selectors.rstrip("} \n").split(",") if selectors else [""]:
                yield line, (path.strip() + each.split("=>")[0].strip()).replace("`", "")
    for found in _CLASS.finditer(_CLAUSE.sub("", _IMPORT.sub(lambda each: "\n" * each[0].count("\n"), code))):
        yield code.count("\n", 0, found.start()) + 1, found[0]


def _resolve(room: str, name: str) -> Iterator[str]:
    """The room of the shim that a name leads to, as a file of a room sees it. None for what is not of the shim."""
    parts = name.split(".")
    own = [] if room in ("", ERRORS) else room.split(".")
    if "ckpt" in parts:
        steps = parts[parts.index("ckpt") + 1 :]
    elif any(_is_within(".".join([*own, parts[0]]), each) for each in LAYERS):
        steps = [*own, *parts]
    else:
        return
    depth = next((at for at, step in enumerate(steps) if not step[:1].islower()), len(steps))
    target = ".".join(steps[:depth])
    if depth < len(steps) and steps[depth] != "_":
        yield ERRORS if not target and steps[depth] in ERROR_NAMES else target
    else:  # a package, or all that is in one: from then on, packages inside it need no import
        yield next((each for each in LAYERS if _is_within(target, each)), target)


def _is_within(package: str, room: str) -> bool:
    return not package or room == package or room.startswith(f"{package}.")
