"""A function is named by what it does, so its name does not begin with a participle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.checks.sources import parse_all

ALLOWED = {
    "keyed": "the name users know, as groupBy and windowed are",
    "keyed_inputs": "as keyed, for several inputs",
    "onQueryStarted": "Spark calls it so",
    "onQueryTerminated": "Spark calls it so",
}
"""Names that stay, each with the reason."""

VERBS = {"need", "feed", "seed", "embed", "speed", "exceed", "proceed", "succeed", "shed", "bleed", "read"}
IRREGULAR = re.compile(
    "begun|bound|bought|broken|brought|built|chosen|done|drawn|driven|fallen|felt|flown|found|frozen|given|gone|grown|held|"
    "hidden|kept|known|laid|left|lent|lost|made|meant|met|paid|said|seen|sent|shown|sold|sought|spent|stolen|stuck|sworn|"
    "taken|taught|thought|thrown|told|torn|understood|won|worn|written"
)


def find_problems() -> Iterator[str]:
    """A line for each function whose name begins with a participle."""
    for path, tree in parse_all():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not _is_property(node) and is_participle(node.name):
                yield f"{path}:{node.lineno}: {node.name} is named by a participle: name what it does"


def is_participle(name: str) -> bool:
    """Whether the first word of a function's name is one."""
    first = name.strip("_").partition("_")[0]
    if name in ALLOWED or first in VERBS:
        return False
    return IRREGULAR.fullmatch(first) is not None or (first.endswith("ed") and len(first) > len("bed"))


def _is_property(node: ast.FunctionDef) -> bool:
    """Whether it is read as an attribute, which is named as one."""
    return any("property" in ast.unparse(each) or ast.unparse(each).endswith(".setter") for each in node.decorator_list)
