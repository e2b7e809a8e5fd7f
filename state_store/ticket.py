"""Where a Python worker finds the database and the staging folder of its task's transaction.

The state server and the worker share a machine but no connection. Both know the executor's local folder and
the task attempt's id, so a small file of that name tells the worker the rest::

    <local folder>/tickets/<task attempt>-<operator>-<store>.json
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.local_files import publish
from pyspark_ckpt.state_store.meta import StoreMeta

_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(frozen=True)
class WorkerTask:
    """The task whose Python worker is to find a transaction, and the schema of the operator's keys, in Spark's JSON."""

    attempt: int
    key_schema: str = ""


class Ticket(msgspec.Struct, frozen=True):
    """Content of a ticket. ``meta`` is the store at the base version: its states and their numbers.

    ``compression``: of the database, and of what the worker writes.
    """

    operator: int
    partition: int
    name: str
    version: int
    id: str
    new_id: str
    db: str
    live: bool
    staging: str
    compression: str
    meta: StoreMeta
    key_schema: str = ""


def ticket_path(local_dir: Path, attempt: int, operator: int, name: str) -> Path:
    """Where the ticket of a task attempt for one store lies."""
    return local_dir / "tickets" / f"{attempt}-{operator}-{_UNSAFE.sub('_', name)}.json"


def write_ticket(path: Path, ticket: Ticket) -> None:
    """Put the ticket where the worker looks; readers see all of it or nothing. For this user only."""
    publish(path, msgspec.json.encode(ticket))


def read_ticket(path: Path) -> Ticket:
    """Read a ticket."""
    return msgspec.json.decode(path.read_bytes(), type=Ticket)
