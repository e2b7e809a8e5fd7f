"""Arguments as given to the Python functions, whose types Python does not check."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from pyspark_ckpt.state_store.errors import InvalidInputError

Location: TypeAlias = str | os.PathLike[str]

_FILE = re.compile(r"((?i:file:(?://[^/]*)?)?)(/.*)", re.DOTALL)
"""An absolute path, or a ``file:`` URI of one."""


def location_text(given: object, what: str) -> str:
    """Return the path or URL given for ``what``. Raises InvalidInputError (anything else, or empty text)."""
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text:
        raise InvalidInputError(
            f"{what} is {repr(given)[:200]}, of type {type(given).__name__}.", hint="Give a path or a URL."
        )
    return text


def require_truth(given: object, what: str) -> None:
    """Raise InvalidInputError unless True or False is given for ``what``: the text "false" would count as true."""
    if not isinstance(given, bool):
        raise InvalidInputError(
            f"{what} must be True or False, got {repr(given)[:200]} of type {type(given).__name__}."
        )


def read_mapping(given: object, what: str, example: str) -> Mapping[str, Any]:
    """Return the mapping that is given for ``what``; None is an empty one. ``example``: of one.

    Raises InvalidInputError unless its keys are text.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidInputError(
            f"{what} must be a mapping with text as keys, got {repr(given)[:200]} of type {type(given).__name__}.",
            hint=f"For example: {example}.",
        )
    return given


def remove_dots(location: str) -> str:
    """Return a path or a ``file:`` URI in which each ``..`` has removed the name before it, even if that is a link.

    Spark does the same with its paths. Other locations are returned unchanged.
    """
    found = _FILE.fullmatch(location)
    if found is None or ".." not in found[2].split("/"):
        return location
    return found[1] + os.path.normpath(found[2])
