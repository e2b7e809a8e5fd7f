"""Notes of Python workers about local copies that they cannot read. Workers have no connection to the state server.

::

    <staging folder of the transaction>/<16 hex digits>.damage      the failure, as text

The state server reads the notes when the transaction ends, which happens because the worker's task fails.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path

from pyspark_ckpt.state_store.local.files import publish
from pyspark_ckpt.state_store.plain_files import open_plain

MAX_NOTE_BYTES = 4096


def write_note(staging: Path, failure: str) -> None:
    """Write a note that the local copy of the transaction with this staging folder could not be read."""
    with suppress(OSError):  # the folder is gone and so is the copy: the state server notices that itself
        publish(staging / f"{uuid.uuid4().hex[:16]}.damage", failure.encode(errors="replace")[:MAX_NOTE_BYTES])


def read_notes(staging: Path) -> list[str]:
    """Return all failures that workers have noted."""
    notes = []
    for path in sorted(staging.glob("*.damage")):
        with suppress(OSError), open_plain(path) as note:  # the disk fails: the next attempt writes a new note
            notes.append(note.read(MAX_NOTE_BYTES).decode(errors="replace"))
    return notes
