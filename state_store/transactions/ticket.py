"""Tickets: files from which a Python worker learns the database and the staging folder of its task's transaction.

The state server and the worker share a machine but no connection. Both know the executor's local folder, the id of the
task attempt and the executor. A small file with these in its name tells the worker the rest::

    <local folder>/tickets/<task attempt>-<executor>-<operator>-<partition>-<store>.json

After ``coalesce``, one task processes several partitions of an operator, one after another. Each has its ticket from
the begin of its transaction to the commit, and Spark begins the next partition after that. So while an operator's
function is called, the operator's ticket is that of the call's partition, whatever the number of the task's own
partition. One task can have several operators at the same time: the plan tells each worker the number of its own.

Every application counts attempts from 0, and several may share the parent of their local folders. Therefore an executor
is identified by the name of its block manager folder, which is unique.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import (
    MAX_PARTITIONS,
    CommitId,
    Count,
    Location,
    OperatorNumber,
    Partitions,
    StoreName,
    decode_as,
    seal,
    unseal_local,
)
from pyspark_ckpt.state_store.local.files import is_own, make_folder, publish, require_own
from pyspark_ckpt.state_store.plain_files import read_plain

_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(frozen=True)
class WorkerTask:
    """The task whose Python worker looks for a transaction.

    ``key_schema``: of its operator, in Spark's JSON. ``num_partitions``: with which the query runs.
    """

    attempt: int
    executor: str = ""
    key_schema: str = ""
    num_partitions: int | None = None


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a ticket. ``meta`` is the metadata of the store at the base version: states and their numbers.

    ``num_partitions``: with which the query runs. At version 0, ``meta`` has no number. ``compression``: of the
    database and of the worker's files. ``allow_non_restored_state``: states that the worker's operator does not declare
    are no error. ``operator_states``: see ``OperatorStates``. ``checkpoint`` and ``place_options``: for commands that
    messages name; a placeholder if the checkpoint is not known. ``path``: of the ticket. If another task commits a
    version on the same base, the live database moves on, and another ticket replaces this one and leads to a copy of
    the base.
    """

    operator: OperatorNumber
    partition: Partitions
    name: StoreName
    version: Count
    id: CommitId
    new_id: CommitId
    db: Location
    live: bool
    staging: Location
    compression: Annotated[str, msgspec.Meta(pattern=r"\A(lz4|zstd|none)\Z")]
    meta: StoreMeta
    key_schema: str = ""
    allow_non_restored_state: bool = False
    operator_states: tuple[tuple[StateMeta, ...], ...] = ()
    num_partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)] | None = None
    checkpoint: Location = "CHECKPOINT"
    place_options: dict[str, str] = {}
    path: Location = ""


def ticket_path(local_dir: Path, task: WorkerTask, store: Identity) -> Path:
    """Return the path of the ticket of a task attempt for one store."""
    of_partition = f"{store.partition}-{_UNSAFE.sub('_', store.name)}"
    return local_dir / "tickets" / f"{_prefix(task, store.operator)}{of_partition}.json"


def ticket_paths(parent: Path, task: WorkerTask, operator: int | None = None) -> list[Path]:
    """Return all tickets of a task attempt, or those of one operator in it.

    They are searched for in the local folders of this user's executors below ``parent``. It may be ``/tmp``, in which
    other users can write. Their folders are ignored.
    """
    found = parent.glob(f"ckpt-*/server/tickets/{_prefix(task, operator)}*.json")
    return [path for path in found if is_own(path.parents[2])]


def _prefix(task: WorkerTask, operator: int | None) -> str:
    of_operator = "" if operator is None else f"{operator}-"
    return f"{task.attempt}-{_UNSAFE.sub('_', task.executor)}-{of_operator}"


def write_ticket(path: Path, ticket: Ticket) -> None:
    """Write the ticket atomically: readers see all of it or nothing. Only this user can read it."""
    make_folder(path.parent, path.parents[1])
    publish(path, seal(ticket))


def read_ticket(path: Path) -> Ticket:
    """Read a ticket. Raises FormatError, which names it, if it is damaged or leads out of its local folder.

    Raises InvalidInputError unless it and its folders belong to this user, are no links, and only this user can write
    to them.
    """
    for each in (path.absolute().parents[1], path.parent, path):
        require_own(each)
    ticket = decode_as(unseal_local(read_plain(path), str(path)), Ticket, str(path))
    local_dir = path.absolute().parents[1]
    for place, below in ((ticket.db, local_dir / "stores"), (ticket.staging, local_dir / "staging")):
        if ".." in Path(place).parts or "\0" in place or below not in Path(place).parents:
            raise FormatError(f"{path} is damaged: {place!r} is not in {below}.")
    return ticket
