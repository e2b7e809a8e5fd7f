"""Names of the objects in the remote folder of one store. The names alone give the lineage.

::

    <version:020d>-<id>-<parent id>.delta    one commit; the parent of version 1 is "0"
    <version:020d>-<id>.snapshot             manifest of one snapshot: its creation publishes it
    <version:020d>-<epoch:010d>.winner       checkpoint format 1 only: which commit of a run counts
    <version:020d>-<id>.replaced             empty: no commit up to this version is needed any more, see ``retention``
    sst/<sha256>-<8 hex digits>.sst          one table file of one or more snapshots
    scrub.json                               how far stored objects were re-read, see ``scrub``
    _ckpt/runs/<epoch:010d>.run              in the folder of the checkpoint: a run of the query
    _ckpt/non-restored-state.allowed         in the folder of the checkpoint, if a restore allowed such state
    _ckpt/first-batch.unfinished             in the folder of the checkpoint: of real-time mode, during the first batch
    _ckpt/replay.json                        in the folder of the checkpoint, if a restore carried over plans of batches
    _ckpt/migrations.json                    in the folder of the checkpoint, if its state was changed by migrations

Versions have 20 digits so that the order of names is the order of versions. Objects with other names are foreign (Spark
keeps ``_metadata`` there) and are neither read nor deleted.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.json_objects import MAX_LONG

PROVIDER_CLASS = "org.apache.spark.sql.ckpt.CkptStateStoreProvider"
"""The class of the state store that Spark loads."""
PROVIDER_CONF = "spark.sql.streaming.stateStore.providerClass"
"""The name under which a session and the offset log keep the class of the state store."""
META_NAME = "meta.json"
CHECKPOINT_FOLDER = "_ckpt"
RUNS_FOLDER = f"{CHECKPOINT_FOLDER}/runs"
WATERMARKS_FOLDER = f"{CHECKPOINT_FOLDER}/watermarks"
"""A folder in a checkpoint: after each batch, the next batch's input about inputs that can be idle."""
REPLAY_FOLDER = f"{CHECKPOINT_FOLDER}/replay"
"""A folder in a checkpoint: plans of batches that the query ran after the savepoint to which it went back."""
CARRIED_NAME = "replay.json"
"""An object in the folder of the checkpoint or savepoint: the last batch with such a plan."""
NON_RESTORED_STATE_NAME = "non-restored-state.allowed"
"""An object in the folder of the checkpoint. If it exists, states that no operator declares are left alone."""
MIGRATIONS_NAME = "migrations.json"
"""An object in the folder of the checkpoint or savepoint: the named changes of state that were made, in order."""
LAST_EPOCH = 10**10 - 1
TABLE_FOLDER = "sst"
SCRUB_NAME = "scrub.json"
ROWS_FOLDER = "rows"
"""The folder of the rows of a canonical savepoint."""
SAVEPOINT_NAME = "savepoint.json"
"""An object in the folder of a savepoint: its content. It is written last and deleted first."""
UNFINISHED_NAME = "savepoint.unfinished"
"""An object in the folder of a savepoint while it is written or deleted."""
WORK_FOLDER = f"{CHECKPOINT_FOLDER}/restore"
"""A folder in a checkpoint or a savepoint while it is written."""
RESTORE_REQUEST_NAME = f"{WORK_FOLDER}/request.json"
"""An object in the folder of a checkpoint while a restore writes it."""

_DELTA = re.compile(r"([0-9]{20})-([A-Za-z0-9_.]{1,128})-([A-Za-z0-9_.]{1,128})\.delta")
_SNAPSHOT = re.compile(r"([0-9]{20})-([A-Za-z0-9_.]{1,128})\.snapshot")
_WINNER = re.compile(r"([0-9]{20})-([0-9]{10})\.winner")
_REPLACED = re.compile(r"([0-9]{20})-([A-Za-z0-9_.]{1,128})\.replaced")
_TABLE_OBJECT = re.compile(r"sst/([0-9a-f]{64})-[0-9a-f]{8}\.sst")
_RUN = re.compile(r"_ckpt/runs/([0-9]{10})\.run")
_DELTA_FILE = re.compile(r"[0-9]{4}\.sst")


class DeltaName(NamedTuple):
    """The name of a delta: a commit, and the commit that it follows."""

    commit: Marker
    parent: Marker

    def __str__(self) -> str:
        """Return the object name."""
        return f"{self.commit.version:020d}-{self.commit.id}-{self.parent.id}.delta"


class WinnerName(NamedTuple):
    """The name of a winner: its version, and the epoch of the run that it belongs to."""

    version: int
    epoch: int

    def __str__(self) -> str:
        """Return the object name."""
        return f"{self.version:020d}-{self.epoch:010d}.winner"


class ReplacedName(NamedTuple):
    """The name of an object that says which snapshot replaces all commits up to its version."""

    commit: Marker

    def __str__(self) -> str:
        """Return the object name."""
        return f"{self.commit.version:020d}-{self.commit.id}.replaced"

    @property
    def version(self) -> int:
        """The version of the snapshot."""
        return self.commit.version


def snapshot_name(commit: Marker) -> str:
    """Return the object name of the manifest of ``commit``."""
    return f"{commit.version:020d}-{commit.id}.snapshot"


def table_object_name(sha256: str, upload: str) -> str:
    """Return the object name of the ``upload``, a new id, of a table file with this content.

    The tail makes every upload a separate object. A snapshot in progress can therefore never rely on an unreachable
    object that retention is about to delete.
    """
    return f"{TABLE_FOLDER}/{sha256}-{upload[:8]}.sst"


def parse(name: str) -> DeltaName | WinnerName | ReplacedName | Marker | None:
    """Read an object name: a delta, a winner, what is replaced, a snapshot (its commit), or None for a foreign name."""
    match = _DELTA.fullmatch(name) or _WINNER.fullmatch(name) or _SNAPSHOT.fullmatch(name) or _REPLACED.fullmatch(name)
    if match is None:
        return None
    version = int(match[1])
    if version > MAX_LONG:  # Spark counts in longs
        return None
    if match.re is _DELTA:
        return DeltaName(Marker(version, match[2]), Marker(version - 1, match[3])) if version > 0 else None
    if match.re is _WINNER:
        return WinnerName(version, int(match[2]))
    return ReplacedName(Marker(version, match[2])) if match.re is _REPLACED else Marker(version, match[2])


def run_name(epoch: int) -> str:
    """Return the object name, in the checkpoint, of the run with this epoch."""
    return f"{RUNS_FOLDER}/{epoch:010d}.run"


def parse_epoch(name: str) -> int | None:
    """Return the epoch of a run by the name of its object; None for a foreign name."""
    match = _RUN.fullmatch(name)
    return None if match is None else int(match[1])


def is_table_object(name: str) -> bool:
    """Return whether ``name`` is that of a table file of a snapshot."""
    return _TABLE_OBJECT.fullmatch(name) is not None


def is_delta_file(name: str) -> bool:
    """Return whether ``name`` is that of a table file inside a delta."""
    return _DELTA_FILE.fullmatch(name) is not None


def new_id() -> str:
    """Return a unique id: 32 hexadecimal digits. It is never ``"0"``, which is the id of version 0."""
    return uuid.uuid4().hex
