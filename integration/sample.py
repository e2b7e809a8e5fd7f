"""Cases that `make test` leaves out: what they show, others show as well, pair by pair.

``CKPT_MATRIX=all`` takes them too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

ALL = os.environ.get("CKPT_MATRIX") == "all"


def sampled(names: Iterable[Hashable], left_out: Collection[Hashable]) -> list[Any]:
    """Parameters of a test: all ``names``, those that are left out marked so."""
    every = list(names)
    unknown = sorted(map(str, set(left_out) - set(every)))
    if unknown:
        raise ValueError(f"There are no cases {unknown}: there are {every}.")
    return [pytest.param(name, marks=pytest.mark.matrix) if name in left_out else name for name in every]
