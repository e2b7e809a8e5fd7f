"""Check whether the state of every store can be restored to its content after a batch."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import describe_lost_log, find_last_version, list_operators
from pyspark_ckpt.state_store.checkpoints.query.entries import refuse_other_provider
from pyspark_ckpt.state_store.checkpoints.verification import verify_version
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError, StorageError
from pyspark_ckpt.state_store.identity import Identity


def find_lost_log(checkpoint: Checkpoint) -> str:
    """Return that there is state, though no batch is committed, as after the loss of the logs; empty if that may be.

    Raises StorageError.
    """
    checkpoint.look_again()
    try:
        last = find_last_version(checkpoint, (identity for _, identity in checkpoint.stores()))
    except FormatError:  # of the files that name the stores, or say where they are
        return ""
    return describe_lost_log(checkpoint, last)


@dataclass(frozen=True)
class StateFaults:
    """The faults in the state after a batch. ``passed_over``: those that a restore gets around."""

    lost: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()


def find_state_faults(checkpoint: Checkpoint, batch: int, *, reads_all: bool) -> StateFaults:
    """Return the faults of the state after ``batch``, whose commit is whole; nothing is ``lost`` if it can be restored.

    Names and metadata are checked first. Only if they are right, and ``reads_all``, is everything read. Raises
    InvalidInputError (state of another provider), StorageError.
    """
    version = batch + 1
    refuse_other_provider(checkpoint.place, batch)
    checkpoint.look_again()
    checkpoint.go_back(version)
    damaged: dict[Identity, CkptError] = {}
    try:
        operators = list_operators(checkpoint, version, damaged=damaged)
    except (StorageError, InvalidInputError):
        raise
    except CkptError as problem:
        return StateFaults((problem.message,))
    if damaged:
        return StateFaults(tuple(problem.message for problem in damaged.values()))
    if not reads_all:
        return StateFaults()
    stores = [each.identity for operator in operators for stores in operator.stores.values() for each in stores]
    read = [verify_version(checkpoint, identity, version) for identity in stores]
    return StateFaults(
        tuple(problem for each in read if not each.is_restorable for problem in each.problems),
        tuple(problem for each in read if each.is_restorable for problem in each.passed_over),
    )
