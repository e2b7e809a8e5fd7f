"""Moves a checkpoint in a process that a test kills: ``python -m integration.adoption.moving_program WHAT``.

WHAT is a line of JSON: the ``act`` with its ``source`` and ``target``, the ``runner`` of its tasks, and ``options``.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pyspark_ckpt as ckpt
from pyspark_ckpt import savepoints

if TYPE_CHECKING:
    from collections.abc import Callable

READY = "ready"
ACTS: dict[str, Callable[..., Any]] = {
    "adopt": lambda source, target, options: ckpt.moving.adopt(source, target, 4, options=options),
    "hand_back": lambda source, target, options: ckpt.moving.hand_back(source, target, options=options),
    "branch": lambda source, target, options: ckpt.moving.branch(source, target, options=options),
}


def main(what: dict[str, Any]) -> None:
    """Say that the move begins, and at its end the rows of each state."""
    if what["runner"] == "job":
        from integration.conftest import new_session

        new_session()
    else:
        setattr(savepoints, "SMALL_BYTES", 0)  # noqa: B010 - processes also for little state; mypy asks for an export
    print(READY, flush=True)
    done = ACTS[what["act"]](what["source"], what["target"], what["options"])
    print(json.dumps(sorted([each.store, each.name, each.digest.rows] for each in done.states)), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
