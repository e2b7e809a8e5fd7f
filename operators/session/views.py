"""The databases that a Python worker reads: those of the state server, kept open for the next task."""

from __future__ import annotations

import os
import shutil
import uuid
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import sleep
from typing import NamedTuple

from pyspark_ckpt.state_store.database import Reader, Tuning
from pyspark_ckpt.state_store.database.column_names import columns_folder
from pyspark_ckpt.state_store.errors import CkptError, FormatError, LifecycleError, StorageError
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.local.damage_notes import write_note
from pyspark_ckpt.state_store.sst.column_file import OpenColumnFiles
from pyspark_ckpt.state_store.transactions.ticket import Ticket, read_ticket

CACHE_BYTES = 16 << 20
OPEN_ATTEMPTS = 5
PAUSE_S = 0.05
"""Before a live database is opened again."""
READERS_KEPT = 4
"""A worker of more stores opens each for one task."""


class View(NamedTuple):
    """A database that another process owns, and the column files of its table files."""

    reader: Reader
    columns: OpenColumnFiles


_views: OrderedDict[str, View] = OrderedDict()


@cache
def get_tuning(compression: str) -> Tuning:
    """Return the settings of all databases and table files of this process."""
    return Tuning(CACHE_BYTES, compression)


def open_reader(ticket: Ticket) -> Reader | None:
    """Return a view of the rows at the ticket's base, None for version 0. It is kept open for the next task.

    Raises FormatError (damage), StorageError, LifecycleError (the transaction of the task has ended).
    """
    view = find_view(ticket)
    return None if view is None else view.reader


def find_view(ticket: Ticket) -> View | None:
    """Return a view of exactly the ticket's base, None for version 0. Views are kept for the next task.

    Raises as ``open_reader``.
    """
    base = Marker(ticket.version, ticket.id)
    if base == EMPTY:
        return None
    with noting_damage(ticket):
        view, held = _reach(ticket, base)
    if held != base:
        view.reader.close()
        return find_view(_read_again(ticket, held))
    view.columns.check_again()
    _views[ticket.db] = view
    while len(_views) > READERS_KEPT:
        _views.popitem(last=False)[1].reader.close()
    return view


def _read_again(ticket: Ticket, held: Marker) -> Ticket:
    """Return the ticket that leads to a copy of the base: the live database moved on when another task committed."""
    if ticket.path:
        with suppress(FileNotFoundError):
            newer = read_ticket(Path(ticket.path))
            if newer.new_id == ticket.new_id and not newer.live:
                return newer
    raise LifecycleError(
        f"The database in {ticket.db} has moved on from {Marker(ticket.version, ticket.id)} to {held}, and the "
        "transaction of the task has ended.",
        hint="No action is needed: if the task still counts, it is tried again.",
        retryable=True,
    )


def _reach(ticket: Ticket, base: Marker) -> tuple[View, Marker]:
    """Return a view of ``base``, or of what a live database has moved on to; and the commit that it shows.

    A live database only moves forward. If it shows less, it has lost its newest records; or RocksDB could not open
    their files because a compaction had just deleted them, and shows an older state, until it is opened again.
    Raises FormatError.
    """
    for attempt in range(OPEN_ATTEMPTS if ticket.live else 1):
        if attempt:
            sleep(PAUSE_S)
        view, held = _catch_up(ticket, base)
        if held is not None and (held == base or (ticket.live and held.version >= base.version)):
            return view, held
        view.reader.close()
    there = _count_files(Path(ticket.db))
    raise FormatError(f"The database in {ticket.db} is damaged: it shows {held}, not {base}; {there}.")


def _count_files(folder: Path) -> str:
    """Return what a message says of the files of a database."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as problem:
        return f"its folder cannot be listed ({problem.strerror})"
    tables = sum(name.endswith(".sst") for name in names)
    others = [name for name in names if name.startswith(("CURRENT", "MANIFEST"))]
    return f"there are {tables} table files, {', '.join(others) or 'and nothing that names them'}"


def _catch_up(ticket: Ticket, base: Marker) -> tuple[View, Marker | None]:
    """Return a view of ``base`` or of the newest version of the database, and its commit."""
    kept = _views.pop(ticket.db, None)
    view = kept or _open_view(ticket)
    try:
        view.reader.catch_up()
        held = view.reader.marker()
        if kept is not None and held != base and not view.reader.follows:
            view.reader.close()
            view = _open_view(ticket)
            held = view.reader.marker()
    except CkptError:
        view.reader.close()
        raise
    return view, held


class noting_damage:  # noqa: N801 - used as a function
    """Leave a note for the state server if the database cannot be read within: the server then discards that copy."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, (FormatError, StorageError)):
            write_note(Path(self._ticket.staging), str(problem))


def _open_view(ticket: Ticket) -> View:
    return View(_open_reader(ticket), OpenColumnFiles(columns_folder(Path(ticket.db))))


def _open_reader(ticket: Ticket) -> Reader:
    """Open the database so that it can follow the live one, if it will be kept for that. That takes twice as long."""
    is_kept = ticket.live and len(_views) < READERS_KEPT
    scratch = _new_scratch(Path(ticket.staging).parents[1] / "readers") if is_kept else None
    for attempt in range(1, OPEN_ATTEMPTS + 1):
        try:
            return Reader(Path(ticket.db), get_tuning(ticket.compression), scratch)
        except (StorageError, FormatError):  # compaction may drop a file between its listing and its opening
            if attempt == OPEN_ATTEMPTS or not ticket.live:
                raise
            sleep(PAUSE_S * (attempt - 1))
    raise AssertionError("not reached")


def _new_scratch(folder: Path) -> Path:
    """Return a new folder for the log of a reader. Folders of workers that do not run any more are removed."""
    for left in folder.glob("*-*"):
        if not _is_running(int(left.name.partition("-")[0])):
            shutil.rmtree(left, ignore_errors=True)
    return folder / f"{os.getpid()}-{uuid.uuid4().hex}"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
