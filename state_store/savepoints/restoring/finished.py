"""Tell a user who repeats a finished restore what is in its target now."""

from __future__ import annotations

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.query.entries import read_confs, read_partitions
from pyspark_ckpt.state_store.checkpoints.query.sources import parse_offsets
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import (
    CHECKPOINT_FOLDER,
    NON_RESTORED_STATE_NAME,
    PROVIDER_CLASS,
    PROVIDER_CONF,
)
from pyspark_ckpt.state_store.format.remote import folder_of_query, is_same_place, store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.merged_states import merge_states
from pyspark_ckpt.state_store.restore.commit_meta import read_meta_at
from pyspark_ckpt.state_store.savepoints.nesting import is_within
from pyspark_ckpt.state_store.savepoints.restoring.movement import begin_commit_id
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.request import RecordedRequest


def refuse_checkpoint(plan: RestorePlan, wanted: RecordedRequest) -> None:
    """Raise InvalidInputError if the target of a restore is already the checkpoint of a query.

    The error says whether the restore that is ``wanted`` made it, as far as the checkpoint proves that. Raises
    StorageError.
    """
    place, origin = plan.place, plan.source.taken_from
    if find_kind(place) is not FolderKind.CHECKPOINT:
        return
    there, partitions = _open(place, plan.workplace.options)
    is_origin = bool(origin) and is_within(place, origin)
    is_like = there.newest_version >= wanted.version and partitions == wanted.partitions and not is_origin
    is_like = is_like and _read_provider(there) == (wanted.provider or PROVIDER_CLASS)
    has_made = _has_made(plan, wanted, there) if is_like else False
    if has_made and there.query_id == wanted.query_id:
        has_run = " The query has run since." if there.newest_version > wanted.version else ""
        raise InvalidInputError(
            f"{place.url} is not empty: this {plan.act} has already finished. It is "
            f"{_describe(there, partitions)}.{has_run}",
            hint=f"Start the query there, with spark.sql.shuffle.partitions={partitions}. For another {plan.act}, name "
            "a new folder.",
        )
    perhaps = ""
    if is_like and not wanted.keeps_id and there.query_id != wanted.source_query:
        perhaps = f"An earlier run of this {plan.act} may have made it, under a new query id. "
    elif has_made is None and there.query_id == wanted.query_id:
        perhaps = f"An earlier run of this {plan.act} may have made it. "
    raise InvalidInputError(
        f"{place.url} is not empty: it is {_describe(there, partitions)}.",
        hint=f"{perhaps}Name a new folder for a checkpoint.",
    )


def _has_made(plan: RestorePlan, wanted: RecordedRequest, there: Checkpoint) -> bool | None:
    """Return whether the ``wanted`` restore made a checkpoint; None if nothing proves or disproves it.

    The commits of new stores are named after the restore. Copied stores keep the commits of the source, as any copy of
    it does. Raises StorageError.
    """
    made = [each for each in plan.source.operators if not plan.is_copied(each)]
    source = plan.workplace.place(plan.source.url)
    has_sources = _has_its_sources(source, wanted, there.place)
    if has_sources is False:
        return False
    if not made or (has_sources is None and wanted.source_names):
        return None
    is_allowed = plan.request.allow_non_restored_state or _allows_non_restored_state(source)
    if is_allowed != _allows_non_restored_state(there.place):
        return False
    answers = [_is_made_by(plan, wanted, there, operator, name) for operator in made for name in operator.stores]
    return False if False in answers else None if None in answers else True


def _read_provider(there: Checkpoint) -> str:
    """Return the class of the provider that holds a query's state. Raises StorageError."""
    try:
        return str(read_confs(there.place, there.newest_version - 1).get(PROVIDER_CONF, PROVIDER_CLASS))
    except (NotFoundError, FormatError):  # the log does not say
        return PROVIDER_CLASS


def _has_its_sources(source: BlobPlace, wanted: RecordedRequest, there: BlobPlace) -> bool | None:
    """Return whether the sources have the names that the restore gives them; None if their log is gone or damaged."""
    name = f"offsets/{wanted.version - 1}"
    try:
        found = parse_offsets(there.get(name), f"{there.url}/{name}")
        offsets = parse_offsets(source.get(name), f"{source.url}/{name}")
    except (NotFoundError, FormatError):
        return None
    return found == (offsets.rename(wanted.source_names) if wanted.source_names else offsets)


def _is_made_by(
    plan: RestorePlan, wanted: RecordedRequest, there: Checkpoint, operator: OperatorVersion, name: str
) -> bool | None:
    """Return the same for the first of the new stores with a name."""
    identity = Identity(operator.operator.number, 0, name)
    place = there.find_place(identity)
    expected = plan.place.url if not plan.options.remote else folder_of_query(plan.options.remote, wanted.query_id)
    lineage, beginning = Lineage.read(place), begin_commit_id(wanted, identity)
    commits = lineage.list_commits(wanted.version)
    if not commits:  # retired meanwhile
        return None
    commit = next((each for each in commits if each.id.startswith(beginning)), None)
    if commit is None or not is_same_place(place.url, f"{expected}/{store_folder(identity)}"):
        return False
    states = merge_states([store.meta for store in operator.stores[name]], name).rename(wanted.uid_map).states
    try:
        found = read_meta_at(place, commit, lineage).states
    except (NotFoundError, FormatError):  # it is damaged: not the question here
        return None
    return {state.name for state in found} == {state.name for state in states}


def _allows_non_restored_state(place: BlobPlace) -> bool:
    name = f"{CHECKPOINT_FOLDER}/{NON_RESTORED_STATE_NAME}"
    return any(blob.name == name for blob in place.list(CHECKPOINT_FOLDER, prefix=NON_RESTORED_STATE_NAME))


def refuse_claimed(source: BlobPlace, place: BlobPlace, options: Options) -> None:
    """Raise InvalidInputError if nothing is left of the savepoint to claim, and its target is already a checkpoint.

    Raises StorageError.
    """
    if find_kind(source) is not None or find_kind(place) is not FolderKind.CHECKPOINT or source.walk():
        return
    raise InvalidInputError(
        f"{source.url} is not a savepoint: nothing is there. {place.url} is {_describe(*_open(place, options))}.",
        hint="If this restore finished earlier, it has deleted the savepoint that it claimed, and nothing is left to "
        "do: start the query there.",
    )


def _open(place: BlobPlace, options: Options) -> tuple[Checkpoint, int | None]:
    """Return a checkpoint, and the number of its partitions if its newest batch's log has it."""
    there = Checkpoint(place.url, options)
    try:
        return there, read_partitions(place, there.newest_version - 1)
    except (NotFoundError, FormatError):  # no batch is committed, or the log is damaged: what is known is enough
        return there, None


def _describe(checkpoint: Checkpoint, partitions: int | None) -> str:
    with_partitions = "" if partitions is None else f", with {partitions} partitions"
    return f"the checkpoint of query {checkpoint.query_id} at version {checkpoint.newest_version}{with_partitions}"
