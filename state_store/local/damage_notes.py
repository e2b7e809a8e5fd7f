"""What a Python worker says of a local copy that it cannot read: it is not connected to the state server.

::

    <staging folder of the transaction>/<16 hex digits>.damage      the failure, as text

The state server reads the notes when the transaction ends, which it does as the task of the worker fails.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path

from pyspark_ckpt.state_store.local.files import publish
from pyspark_ckpt.state_store.plain_files import open_plain

MAX_NOTE_BYTES = 4096


def write_note(staging: Path, failure: str) -> None:
    """Leave a note of a failure to read the local copy of the transaction that has this staging folder."""
    with suppress(OSError):  # the folder is gone, and so is the copy: the state server sees that by itself
        publish(staging / f"{uuid.uuid4().hex[:16]}.damage", failure.encode(errors="replace")[:MAX_NOTE_BYTES])


def read_notes(staging: Path) -> list[str]:
    """All failures that workers have noted."""
    notes = []
    for path in sorted(staging.glob("*.damage")):
        with suppress(OSError), open_plain(path) as note:  # of a disk that fails: the next attempt notes it anew
            notes.append(note.read(MAX_NOTE_BYTES).decode(errors="replace"))
    return notes
