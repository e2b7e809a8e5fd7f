"""Where a Python worker finds the database and the staging folder of its task's transaction.

The state server and the worker share a machine but no connection. Both know the executor's local folder, the task
attempt's id and the executor, so a small file of that name tells the worker the rest::

    <local folder>/tickets/<task attempt>-<executor>-<operator>-<partition>-<store>.json

One task may process several partitions of an operator, one after the other: behind ``coalesce`` it does. Each has its
ticket from the begin of its transaction to the commit, and Spark begins the next behind that. So what is there while a
function is called is the ticket of that call's partition, whatever partition the task has itself.

Applications that run at the same time, or after each other, count attempts from 0 each and may share a place for local
folders: the executor goes by the name of its folder for blocks, which no other has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import CommitId
from pyspark_ckpt.state_store.format.meta import State, StoreMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Count, decode_as, seal, unseal_local
from pyspark_ckpt.state_store.local.files import is_own, make_folder, publish, require_own
from pyspark_ckpt.state_store.plain_files import read_plain

_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(frozen=True)
class WorkerTask:
    """The task whose Python worker is to find a transaction.

    And of its operator the schema of the keys, in Spark's JSON, and how many partitions the query runs with.
    """

    attempt: int
    executor: str = ""
    key_schema: str = ""
    num_partitions: int | None = None


class Ticket(msgspec.Struct, frozen=True):
    """Content of a ticket. ``meta`` is the store at the base version: its states and their numbers.

    ``num_partitions``: what the query runs with, also where ``meta`` has none recorded, at version 0.
    ``compression``: of the database, and of what the worker writes. ``allow_non_restored_state``: states that the
    worker's operator does not declare are no error. ``operator_states``: see ``OperatorStates``.
    """

    operator: Count
    partition: Count
    name: str
    version: Count
    id: CommitId
    new_id: CommitId
    db: str
    live: bool
    staging: str
    compression: Annotated[str, msgspec.Meta(pattern=r"\A(lz4|zstd|none)\Z")]
    meta: StoreMeta
    key_schema: str = ""
    allow_non_restored_state: bool = False
    operator_states: tuple[tuple[State, ...], ...] = ()
    num_partitions: Annotated[int, msgspec.Meta(ge=1)] | None = None


def ticket_path(local_dir: Path, task: WorkerTask, store: Identity) -> Path:
    """Where the ticket of a task attempt for one store lies."""
    of_store = f"{store.operator}-{store.partition}-{_UNSAFE.sub('_', store.name)}"
    return local_dir / "tickets" / f"{_prefix(task)}{of_store}.json"


def ticket_paths(parent: Path, task: WorkerTask) -> list[Path]:
    """All tickets of a task attempt in the local folders of this user's executors that lie in ``parent``.

    Others may write in ``parent``, which may be ``/tmp``: what they lay there is passed over.
    """
    found = parent.glob(f"ckpt-*/server/tickets/{_prefix(task)}*.json")
    return [path for path in found if is_own(path.parents[2])]


def _prefix(task: WorkerTask) -> str:
    return f"{task.attempt}-{_UNSAFE.sub('_', task.executor)}-"


def write_ticket(path: Path, ticket: Ticket) -> None:
    """Put the ticket where the worker looks; readers see all of it or nothing. For this user only."""
    make_folder(path.parent, path.parents[1])
    publish(path, seal(ticket))


def read_ticket(path: Path) -> Ticket:
    """Read a ticket. Raises FormatError that names it: it is damaged, or leads out of the local folder it lies in.

    InvalidInputError if it, or the folders it lies in, are not this user's alone to write.
    """
    for each in (path.absolute().parents[1], path.parent, path):
        require_own(each)
    ticket = decode_as(unseal_local(read_plain(path), str(path)), Ticket, str(path))
    local_dir = path.absolute().parents[1]
    for place, below in ((ticket.db, local_dir / "stores"), (ticket.staging, local_dir / "staging")):
        if ".." in Path(place).parts or "\0" in place or below not in Path(place).parents:
            raise FormatError(f"{path} is damaged: {place!r} is not in {below}.")
    return ticket
