"""Locations as given to the Python functions: text or a path object."""

from __future__ import annotations

import os
from typing import TypeAlias

from pyspark_ckpt.state_store.errors import InvalidInputError

Location: TypeAlias = str | os.PathLike[str]


def location_text(given: object, what: str) -> str:
    """Return the path or URL that is given for ``what``. Raises InvalidInputError (anything else, or empty text)."""
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text:
        raise InvalidInputError(
            f"{what} is {repr(given)[:200]}, of type {type(given).__name__}.", hint="Give a path or a URL."
        )
    return text
