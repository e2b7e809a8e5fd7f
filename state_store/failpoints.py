"""Named places where a test can make this process die, fail or wait. Costs one attribute read when unused.

``name:action[@n],...`` with action ``kill`` (SIGKILL to the own process), ``error`` (StorageError), ``sleep=<ms>`` or
``hold``. With ``@n`` it acts at the n-th pass. Each fires once per local folder: it leaves a file there before it acts,
so that the next process does not die again. ``hold`` waits until that file is removed.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark_ckpt.state_store.errors import InvalidInputError, Outcome, StorageError

NAMES = frozenset(
    {
        "begin.before",
        "begin.after_ticket",
        "commit.before_upload",
        "commit.after_upload",
        "commit.before_ingest",
        "commit.after_ingest",
        "commit.before_answer",
        "snapshot.before_manifest",
        "snapshot.after_manifest",
        "cleanup.before_delete",
        "restore.before_download",
        "restore.after_download",
    }
)
"""Steps of the work on a store."""
AFTER_WRITE = "place.after_write"
BEFORE_PACK = "pack.before_write"
"""The write of a pack whose commits were answered."""
REQUESTS = ("place.before_write", AFTER_WRITE, "place.before_read", "place.before_list", "place.before_delete")
"""Requests to the places of a store and of its checkpoint."""

ALL = frozenset({*NAMES, *REQUESTS, BEFORE_PACK})

FOLDER = "failpoints"
_LOOK_S = 0.02
_ENTRY = re.compile(r"([a-z_.]+):(kill|error|hold|sleep=[0-9]{1,6})(?:@([0-9]{1,6}))?")


@dataclass
class _FailPoint:
    name: str
    action: str
    remaining: int
    fired: Path


def file_name(entry: str) -> str:
    """Return the name of the file that marks in FOLDER that this ``name:action[@n]`` has fired."""
    return re.sub(r"[^a-z0-9_.@=-]", "_", entry.replace(":", "-"))


class FailPoints:
    """Fail points of one process."""

    def __init__(self, spec: str = "", folder: Path | None = None) -> None:
        """Arm the points of ``spec``. Files in ``folder`` record which have fired. Raises InvalidInputError."""
        self._lock = threading.Lock()
        self._points: list[_FailPoint] = []
        for entry in filter(None, (part.strip() for part in spec.split(","))):
            match = _ENTRY.fullmatch(entry)
            if match is None or match[1] not in ALL or folder is None:
                raise InvalidInputError(
                    f"{entry!r} is not a fail point.",
                    hint="Write name:kill|error|hold|sleep=ms[@n]. The names are: " + ", ".join(sorted(ALL)),
                )
            fired = folder / FOLDER / file_name(entry)
            if not fired.exists():
                self._points.append(_FailPoint(match[1], match[2], int(match[3] or 1), fired))

    def hit(self, name: str) -> None:
        """Act if a point of this name is armed and due."""
        if not self._points:
            return
        for point in [point for point in self._points if point.name == name]:
            with self._lock:
                point.remaining -= 1
                due = point.remaining == 0
            if due:
                _act(point)


def _act(point: _FailPoint) -> None:
    point.fired.parent.mkdir(parents=True, exist_ok=True)
    point.fired.touch()
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif point.action == "error":
        outcome: Outcome = "unknown" if point.name == AFTER_WRITE else "not_applied"
        raise StorageError(f"Fail point {point.name} raised this error.", outcome=outcome)
    elif point.action == "hold":
        while point.fired.exists():
            time.sleep(_LOOK_S)
    else:
        time.sleep(int(point.action.partition("=")[2]) / 1000)
