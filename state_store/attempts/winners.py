"""Checkpoint format 1: decide which of several commits of one version stands, because Spark does not say.

A commit of version v in epoch e is made final by creating ``<v:020d>-<e:010d>.winner``, only if absent, which holds
the commit's id:

- Within a run, the first commit to create it wins. The loser's task succeeds, and its commit is dropped.
- Of several runs, the highest epoch wins: a corrected program that re-runs an uncommitted batch is right.
- If a run's first commit in a process is of a batch that Spark has committed, the run is over. The commit is dropped.

A request for a version without an id gets, in this order: the commit that Spark's commit log names (written by
format 2), the winner of the highest epoch, the only commit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.state_store.attempts.commit_log import read_committed_ids
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, NotFoundError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import WinnerName
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import CommitId, Count, RunId, check_format, seal
from pyspark_ckpt.state_store.packs.lineages import add_named
from pyspark_ckpt.state_store.packs.slots import split_id

WINNER_FORMAT = 1


class WinnerObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a winner object."""

    format: int
    version: Count
    id: CommitId
    run_id: RunId


def declare_winner(place: BlobPlace, commit: Marker, epoch: int, run_id: str) -> Marker:
    """Make ``commit`` the winner of its version in this epoch, unless another was first. Return the one that stands.

    Durable after return. Safe to repeat after a lost answer. Raises StorageError.
    """
    name = WinnerName(commit.version, epoch)
    content = seal(WinnerObject(WINNER_FORMAT, commit.version, commit.id, run_id))
    return commit if place.put_if_absent(str(name), content) else _read_winner(place, name)


@dataclass(frozen=True)
class Evidence:
    """Evidence for which commit of a version stands: the ``place`` of the store, and its query's ``checkpoint``.

    ``named``: the ids in the commit log, if already known. ``lineage``: of ``place``, if already known.
    """

    place: BlobPlace
    checkpoint: BlobPlace
    named: Collection[str] | None = None
    lineage: Lineage | None = None


def resolve(store: Identity, version: int, evidence: Evidence) -> Marker:
    """Return the commit of ``version`` that stands when no id is given. The rules are in the module docstring.

    Raises NotFoundError (never committed, or retired; the commit that the log or a winner names is missing),
    ConflictError (several commits and nothing decides), FormatError (also if the log names several commits),
    StorageError.
    """
    lineage = Lineage.read(evidence.place) if evidence.lineage is None else evidence.lineage
    named = evidence.named
    if named is None:
        named = read_committed_ids(evidence.checkpoint, version, store.operator, store.partition)
    add_named(lineage, evidence.place, store, version, named)
    candidates = lineage.list_commits(version)
    if not candidates:
        lineage.require(Marker(version, "?"), str(store))
    if named:
        return _select_named(store, version, candidates, {split_id(each)[0] for each in named}, lineage.where)
    winners = sorted(winner for winner in lineage.winners if winner.version == version)
    if winners:
        decided = _read_winner(evidence.place, winners[-1])
        if decided in candidates:
            return decided
        raise NotFoundError(
            f"{store}: {winners[-1]} names commit {decided}, whose delta is missing: {lineage.describe()}.",
            hint="Restore the delta from a backup of the checkpoint.",
        )
    if len(candidates) == 1:
        return candidates[0]
    raise ConflictError(
        f"{store}: version {version} was committed as {[candidate.id for candidate in candidates]}, and neither the "
        "commit log nor a winner object says which one stands.",
        hint="Read a version that the commit log still covers.",
    )


def _select_named(
    store: Identity, version: int, candidates: list[Marker], named: Collection[str], where: str
) -> Marker:
    """Return the only one of the ``candidates`` whose id the commit log names."""
    found = [candidate for candidate in candidates if candidate.id in named]
    if len(found) == 1:
        return found[0]
    kind = FormatError if found else NotFoundError
    raise kind(
        f"{store}: the commit log names the ids {sorted(named)} for version {version}, "
        f"but {where} has {[candidate.id for candidate in candidates]}.",
        hint="Check that the state and the commit log are from the same checkpoint.",
    )


def _read_winner(place: BlobPlace, name: WinnerName) -> Marker:
    """Return the commit that a winner object names. Raises FormatError, StorageError."""
    winner, where = read_sealed(place, str(name), WinnerObject), f"{place.url}/{name}"
    check_format(winner.format, WINNER_FORMAT, where)
    if winner.version != name.version:
        raise FormatError(f"{where} is damaged: it holds version {winner.version}.")
    return Marker(winner.version, winner.id)
