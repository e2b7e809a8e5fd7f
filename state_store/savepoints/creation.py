"""Take a savepoint of a running or stopped query: one batch is pinned while it is copied."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event, Thread

from pyspark_ckpt.state_store.attempts.damaged_logs import naming_repair
from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, with_retries
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest, Digests, combine, require_equal
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.query.content import checking_forms
from pyspark_ckpt.state_store.checkpoints.query.copying import (
    copy_id,
    copy_logs,
    copy_operators,
    read_logs,
    require_whole,
)
from pyspark_ckpt.state_store.checkpoints.query.entries import read_partitions
from pyspark_ckpt.state_store.checkpoints.query.files import operator_names, source_file_names
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import (
    CkptError,
    ConflictError,
    LifecycleError,
    NotFoundError,
    StorageError,
)
from pyspark_ckpt.state_store.format.names import WORK_FOLDER
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.log import LOGGER
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.canonical import SavedRows, export
from pyspark_ckpt.state_store.redistribution.copy_task import Copied, CopyTask
from pyspark_ckpt.state_store.redistribution.jobs import Progress, Runner
from pyspark_ckpt.state_store.redistribution.merged_states import require_mergeable
from pyspark_ckpt.state_store.redistribution.store_digests import make_digest_tasks
from pyspark_ckpt.state_store.retention.pins import PIN_S, Pin, Pins
from pyspark_ckpt.state_store.savepoints.nesting import refuse_nested
from pyspark_ckpt.state_store.savepoints.possession import Possession, advising_to_verify, explaining_what_is_left
from pyspark_ckpt.state_store.savepoints.savepoint import (
    NAME,
    SAVEPOINT_FORMAT,
    Kind,
    SavedOperator,
    SavedState,
    SavedStore,
    SavepointInfo,
    refuse_unless_empty,
)

LAST_TRY_S = 2.0
"""How long to keep asking a place that has already timed out to remove a pin."""
LOG_ATTEMPTS = 5
"""How many batches to try, each newer than the last, if the query deletes their logs."""

_log = logging.getLogger(f"{LOGGER}.savepoint")


def create(
    location: str,
    target: str,
    options: Options,
    runner: Runner,
    progress: Progress,
    *,
    written_by: str,
    kind: Kind,
    digests: bool = False,
) -> SavepointInfo:
    """Take a savepoint of the last committed batch of a query, which may be running, into the empty place ``target``.

    The savepoint is complete and durable on return. Faults in the checkpoint's own logs and metadata are found before
    anything is written. A later error leaves an unfinished savepoint, and its hint says how to remove it. With
    ``digests``, all rows of a native savepoint are read, before and after; those of a canonical one are always read.
    Raises InvalidInputError (no checkpoint, a target that is not empty), LifecycleError (no batch yet), ConflictError
    (another savepoint is being taken there, or this one was deleted meanwhile), NotFoundError, FormatError,
    StorageError.
    """
    checkpoint = Checkpoint(location, options)
    workplace = Workplace(replace(options, remote=""))
    place = workplace.resolve(target)
    refuse_nested(place, checkpoint, "a savepoint")
    refuse_unless_empty(place, "a savepoint")
    possession = Possession(place, checkpoint.place)
    explaining = explaining_what_is_left(possession.describe_what_is_left)
    with explaining, advising_to_verify(checkpoint), hold_logs(checkpoint) as (version, logs):
        operators = _list_operators(checkpoint, version, kind)
        possession.take(version)
        own = possession.folder
        files = copy_logs(logs, checkpoint.place, own, checking_forms(source_file_names(checkpoint.place)))
        stores: list[SavedStore] = []
        rows: list[SavedRows] = []
        read: dict[tuple[int, str, str], Digest] = {}
        possession.require()
        if kind == "canonical":
            rows = export(workplace, operators, place.url, runner, progress)
            for blob in place.walk(WORK_FOLDER):
                own.delete(blob.name)
        else:
            stores = _copy_stores(workplace, operators, place.url, runner, progress)
            if digests:
                read = _digests(workplace, operators, place.url, runner, progress)
        files += [*copy_operators(checkpoint.place, own), *copy_id(checkpoint.place, own)]
        possession.require()
        info = SavepointInfo(
            format=SAVEPOINT_FORMAT,
            kind=kind,
            created_ms=round(time.time() * 1000),
            written_by=written_by,
            query_id=checkpoint.query_id,
            checkpoint=checkpoint.place.url,
            version=version,
            partitions=read_partitions(place, version - 1),
            operators=tuple(describe_operator(operator, read) for operator in operators),
            stores=tuple(stores),
            files=tuple(files),
            rows=tuple(rows),
        )
        publish(info, place, possession)
    possession.release()
    return info


def publish(info: SavepointInfo, place: BlobPlace, possession: Possession) -> None:
    """Write ``savepoint.json``, which completes a savepoint. Raises ConflictError (it was deleted), StorageError."""
    content = seal(info)
    possession.folder.put(NAME, content)  # never over a newer savepoint's
    try:
        possession.require()  # a deletion may have begun before savepoint.json was written
    except ConflictError:
        with suppress(NotFoundError):
            if place.get(NAME) == content:
                place.delete(NAME)
        raise


def _copy_stores(
    workplace: Workplace, operators: Sequence[OperatorVersion], target: str, runner: Runner, progress: Progress
) -> list[SavedStore]:
    tasks = [
        CopyTask(workplace, store, f"{target}/{store_folder(store.identity)}")
        for operator in operators
        for stores in operator.stores.values()
        for store in stores
    ]
    copied: list[Copied] = runner(tasks, progress)
    return [
        SavedStore(
            task.source.identity.operator,
            task.source.identity.partition,
            task.source.identity.name,
            task.source.meta.id,
            len(each.objects),
            each.size_bytes,
        )
        for task, each in zip(tasks, copied, strict=True)
    ]


def _digests(
    workplace: Workplace, operators: Sequence[OperatorVersion], target: str, runner: Runner, progress: Progress
) -> dict[tuple[int, str, str], Digest]:
    """Return digests of the copies, by operator, store and state. Raises FormatError if the originals differ."""
    stores = [store for operator in operators for each in operator.stores.values() for store in each]
    before, after = make_digest_tasks(
        workplace, stores, [f"{target}/{store_folder(store.identity)}" for store in stores]
    )
    done: list[Digests] = runner([*before, *after], progress)
    pairs = dict(zip([store.identity for store in stores], zip(done, done[len(before) :], strict=False), strict=True))
    found = {}
    for operator in operators:
        number = operator.operator.number
        for name, each in operator.stores.items():
            old, new = (combine(part) for part in zip(*(pairs[store.identity] for store in each), strict=True))
            require_equal(old, new, f"operator {number}, store {name!r}")
            found.update({(number, name, state): digest for state, digest in new.items()})
    return found


def _list_operators(checkpoint: Checkpoint, version: int, kind: Kind) -> list[OperatorVersion]:
    """Return all operators at ``version``. Raises, from their metadata alone, any error that rules out a savepoint."""
    operators = list_operators(checkpoint, version)
    with naming_repair(checkpoint.place):
        require_whole(checkpoint.place, operator_names(checkpoint.place), checking_forms(()))
    for operator in operators:
        describe_operator(operator, {})  # its layout and types can be read
    if kind == "canonical":
        require_mergeable(operators)
    return operators


@contextmanager
def hold_logs(checkpoint: Checkpoint) -> Iterator[tuple[int, Mapping[str, bytes]]]:
    """Pin a version and read the logs of its batch at once: the query may delete them at any time."""
    for attempt in range(LOG_ATTEMPTS):
        with pin(checkpoint) as version:
            try:
                logs = read_logs(checkpoint.place, version - 1)
            except NotFoundError:
                checkpoint.look_again()
                if checkpoint.newest_version == version or attempt == LOG_ATTEMPTS - 1:
                    raise
                continue
            yield version, logs
            return


def require_newest(checkpoint: Checkpoint) -> int:
    """Return the newest committed version. Raises LifecycleError (no batch is committed yet), StorageError."""
    version = checkpoint.newest_version
    if version == 0:
        raise LifecycleError(
            f"{checkpoint.place.url}: no batch of the query has been committed yet.",
            hint="Wait for the first batch (`query.processAllAvailable()` does that).",
        )
    return version


@contextmanager
def pin(checkpoint: Checkpoint) -> Iterator[int]:
    """Pin the newest committed version while the block runs, and at most ten minutes longer; yield the version.

    Raises as ``require_newest``.
    """
    version = require_newest(checkpoint)
    pins = Pins(checkpoint.place)
    held = [pins.add(version, PIN_S)]
    ended, lapsed = Event(), Event()
    retries = RetryPolicy(checkpoint.workplace.options.place_timeout_s, stopping=ended)
    renewed = Pins(with_retries(checkpoint.place, retries))  # stops waiting when the block has ended
    renewing = Thread(target=_renew, args=(renewed, held, ended, lapsed), daemon=True)
    renewing.start()
    leaving = pins
    try:
        checkpoint.keep_ids()
        yield version
    except StorageError as problem:
        if problem.waited_s:  # perhaps in another process: do not wait as long for the same place again
            leaving = Pins(with_retries(checkpoint.place, RetryPolicy(min(LAST_TRY_S, retries.timeout_s))))
        raise
    except NotFoundError as problem:
        if not lapsed.is_set() and not pins.has_ended(held[0]):
            raise
        raise NotFoundError(
            f"{problem.message} Version {version} was pinned for {PIN_S:.0f} s. This process stalled for longer, or "
            "could not reach the checkpoint, and meanwhile the query retired the version.",
            hint="Try again: that pins a newer version.",
        ) from problem
    finally:
        ended.set()
        renewing.join()
        _unpin(leaving, held[0])


def _renew(pins: Pins, held: list[Pin], ended: Event, lapsed: Event) -> None:
    """Renew a pin until ``ended`` is set; set ``lapsed`` if the pin had ended before it was renewed."""
    while not ended.wait(PIN_S / 4):
        try:
            if pins.has_ended(held[0]):
                lapsed.set()
            held[0] = pins.renew(held[0], PIN_S)
        except CkptError as problem:  # there are three more tries before the pin ends
            _log.warning("could not renew %s: %s", held[0].name, problem)


def _unpin(pins: Pins, pin: Pin) -> None:
    """Remove a pin. If that fails, the pin ends by itself; the work done under it is not lost."""
    try:
        pins.remove(pin)
    except CkptError as problem:
        _log.warning("could not remove %s, which ends by itself in %.0f s: %s", pin.name, PIN_S, problem)


def describe_operator(operator: OperatorVersion, digests: Mapping[tuple[int, str, str], Digest]) -> SavedOperator:
    """Return an operator as a savepoint lists it. ``digests``: the known ones, by operator, store and state."""
    rows = operator.rows()
    states = {
        (store, state.name): state
        for store, versions in operator.stores.items()
        for each in versions
        for state in each.meta.states
    }
    return SavedOperator(
        operator.operator.number,
        operator.operator.name,
        tuple(operator.stores),
        operator.partitions,
        operator.layout.value,
        tuple(operator.uids),
        tuple(
            SavedState(
                store,
                state.name,
                rows[store, state.name],
                state.is_counted,
                state.descriptor.key_schema,
                state.descriptor.value_schema,
                state.descriptor.key_encoder,
                digests.get((operator.operator.number, store, state.name)),
            )
            for (store, _), state in states.items()
        ),
    )
