"""Checks before a query is stopped to be rescaled: everything that can be refused while it still runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pyspark_ckpt.queries.handles import (
    describe_failure,
    find_checkpoint,
    find_driver,
    find_execution,
    find_run,
    is_in_batch,
    is_query,
    is_temporary,
)
from pyspark_ckpt.queries.session_confs import SessionConfs, find_session
from pyspark_ckpt.running.leftovers import refuse_other_files
from pyspark_ckpt.running.new_checkpoint import find_target
from pyspark_ckpt.running.turns import Turn
from pyspark_ckpt.savepoints import collect_options, pin_and_plan
from pyspark_ckpt.state_store.arguments import Location, location_text
from pyspark_ckpt.state_store.blobs import BlobPlace, names_scheme
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF, read_partitions
from pyspark_ckpt.state_store.display import count_text
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError, StorageError
from pyspark_ckpt.state_store.options import PREFIX, Options, read_settings
from pyspark_ckpt.state_store.savepoints.restoring.request import RestoreRequest
from pyspark_ckpt.terminal import print_notice

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Start: TypeAlias = "Callable[[str], StreamingQuery]"

REMOTE_CONF = f"{PREFIX}remote"


@dataclass
class Rescaling:
    """A rescaling that may begin. ``query``: the one that runs; None if it is stopped."""

    query: StreamingQuery | None
    start: Start
    old: Checkpoint
    location: str
    """The old checkpoint, as the query has it."""
    given: str | None
    """The folder for the new checkpoint, if the caller has named one."""
    old_partitions: int
    partitions: int
    deletes: bool
    options: Options
    given_options: Mapping[str, str]
    session: Any
    """That of the query, in the JVM."""
    confs: SessionConfs
    driver: str
    """The application and the host of this driver, as runs of the query have it."""
    turn: Turn | None = None
    """Once the old checkpoint is this call's alone."""
    runs: list[str] = field(default_factory=list)
    """Those that the user's function has returned."""
    has_begun: bool = False
    """Whether the user's function was called, which may have started the query anywhere."""

    @property
    def batch(self) -> int:
        """The batch that the new query runs first."""
        return self.old.newest_version

    def take_turn(self, moves_to: str) -> Turn:
        """From now on, let only this call run the query. Raises LifecycleError, FormatError, StorageError."""
        before, new = self.old.newest_version, self.old.workplace.resolve(moves_to)
        self.turn = Turn.take(self.old.place, new, self.driver, _make_absolute(moves_to, new))
        self.old.look_again()
        if self.old.newest_version != before:
            raise LifecycleError(
                f"another driver has run it on {self.old.place.url} meanwhile, up to batch {self.batch - 1}."
            )
        return self.turn

    def point_back(self, turn: Turn, new: BlobPlace) -> None:
        """Record on the new checkpoint where the query is until it begins there. Raises FormatError, StorageError."""
        turn.point_back(new, _make_absolute(self.location, self.old.place))

    def record_move(self) -> None:
        """Record on the old checkpoint that the query has left it for good. If that fails, stderr gets a notice.

        Raises LifecycleError if others have started the query meanwhile, or are rescaling it.
        """
        self._record(lambda turn: turn.finish())

    def overrule(self) -> None:
        """Do as ``record_move``, whoever has started the query on the old checkpoint meanwhile."""
        self._record(lambda turn: turn.overrule())

    def _record(self, write: Callable[[Turn], None]) -> None:
        if self.turn is None:
            return
        try:
            write(self.turn)
        except (FormatError, StorageError) as problem:
            print_notice(
                f"pyspark-ckpt: could not record that query {self.old.query_id} has left {self.location}: {problem} Do "
                "not start it there any more."
            )

    def set_confs(self) -> None:
        """Set in the session what the new query needs."""
        self.confs.set(PARTITIONS_CONF, str(self.partitions))
        if "remote" in self.given_options:
            self.confs.set(REMOTE_CONF, self.given_options["remote"])


def prepare(
    query_or_checkpoint: StreamingQuery | Location,
    start: Start,
    parallelism: int,
    new_checkpoint: Location | None,
    old_checkpoint: str,
    timeout_s: float,
    first_batch_timeout_s: float | None,
    options: Mapping[str, str] | None,
) -> Rescaling:
    """Check all that can be checked while the query runs. Raises InvalidInputError, LifecycleError, StorageError."""
    number: object = parallelism  # from Python, which does not check types
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidInputError(f"`parallelism` must be a whole number from 1 on, got {parallelism!r}.")
    if not callable(start):
        raise InvalidInputError(
            f"`start` must be a function that starts the query on the checkpointLocation that it gets, "
            f"got {repr(start)[:200]}."
        )
    if old_checkpoint not in ("keep", "delete"):
        raise InvalidInputError(f"`old_checkpoint` must be 'keep' or 'delete', got {old_checkpoint!r}.")
    _require_seconds(timeout_s, "timeout_s")
    if first_batch_timeout_s is not None:
        _require_seconds(first_batch_timeout_s, "first_batch_timeout_s")
    given = None if new_checkpoint is None else location_text(new_checkpoint, "new_checkpoint")
    session = _find_session(query_or_checkpoint)
    query = _require_query(query_or_checkpoint) if is_query(query_or_checkpoint) else None
    location, confs = find_checkpoint(query_or_checkpoint), SessionConfs(session)
    given_options = {**read_settings(confs.read), **(options or {})}
    parsed = collect_options(given_options, location, *([] if given is None else [given]))
    old = _open(location, parsed)
    partitions = read_partitions(old.place, old.newest_version - 1)
    if partitions == parallelism:
        raise InvalidInputError(
            f"Query {old.query_id} already has {count_text(partitions, 'partition')}. Nothing was done."
        )
    refuse_other_run(session, old.query_id, query)
    deletes = old_checkpoint == "delete"
    if deletes:
        _refuse_deletion(old)
    target = find_target(old, location, parallelism, given, parsed)
    if not target.is_made:
        of_both = collect_options(given_options, location, target.location)
        with pin_and_plan(location, target.location, RestoreRequest(parallelism), of_both) as restoration:
            restoration.claim.refuse_state_of_others()
    return Rescaling(
        query,
        start,
        old,
        location,
        given,
        partitions,
        parallelism,
        deletes,
        parsed,
        given_options,
        session,
        confs,
        find_driver(session),
    )


def _make_absolute(location: str, place: BlobPlace) -> str:
    """Return a location that other programs can use, whatever their current folder."""
    return location if names_scheme(location) else f"file:{place.url}"


def _require_seconds(given: object, name: str) -> None:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not cast("float", given) >= 0:  # NaN is not, either
        raise InvalidInputError(f"`{name}` must be a number of seconds from 0 on, got {given!r}.")


def refuse_other_run(session: Any, query_id: str, query: StreamingQuery | None) -> None:  # noqa: ANN401 - of the JVM
    """Raise LifecycleError if this application runs the query, but in another run than the one to be rescaled."""
    run = find_run(session, query_id)
    if run is not None and (query is None or str(run.runId()) != str(query.runId)):
        raise LifecycleError(
            f"Query {query_id} runs on {run.resolvedCheckpointRoot()}.", hint="Call with the query that runs."
        )


def _find_session(query_or_checkpoint: StreamingQuery | Location) -> Any:  # noqa: ANN401 - an object of the JVM
    """Return the JVM's session of a query, or of this process. Raises InvalidInputError, LifecycleError."""
    if is_query(query_or_checkpoint):
        handle = getattr(query_or_checkpoint, "_jsq", None)
        found = None if handle is None else handle.sparkSession()
    else:
        session = find_session()
        if session is None:
            raise LifecycleError(
                "There is no Spark session in which the query could be started.",
                hint="Create it first. To rescale a stopped query without Spark, call "
                "restore(checkpoint, new_checkpoint, parallelism=N).",
            )
        found = getattr(session, "_jsparkSession", None)
    if found is None:
        raise InvalidInputError(
            "A Spark Connect client cannot rescale a query in one call: it does not see the query's checkpoint.",
            hint="Stop the query, call restore(checkpoint, new_checkpoint, parallelism=N), set "
            f"{PARTITIONS_CONF} and start the query with the new checkpointLocation.",
        )
    return found


def _require_query(query: Any) -> StreamingQuery | None:  # noqa: ANN401 - anything that looks like a query
    """Return a query that runs; None if it was stopped. Raises InvalidInputError, LifecycleError (it has failed)."""
    failure = query.exception()
    if failure is not None:
        raise LifecycleError(
            f"Query {query.id} has failed, so it is not rescaled: {describe_failure(failure)}",
            hint="Start it again once the cause is removed. To rescale it before that, call with its "
            "checkpointLocation.",
        )
    if is_in_batch(query):
        raise LifecycleError(
            f"Query {query.id} cannot be rescaled from its own function for foreachBatch: its batch must end first.",
            hint="Call from another thread, without waiting for it in the function.",
        )
    execution = find_execution(query)
    mode = str(execution.outputMode())
    if execution.sink().getClass().getSimpleName() == "MemorySink" and mode != "Complete":
        raise InvalidInputError(
            f"Query {query.id} writes to a memory sink, which Spark cannot start again in the output mode "
            f"{mode.lower()}.",
            hint="Use another sink, such as foreachBatch, or the output mode complete.",
        )
    running: StreamingQuery | None = query if query.isActive else None
    return running


def _open(location: str, options: Options) -> Checkpoint:
    """Return the checkpoint of a query with state of this store. Raises InvalidInputError, LifecycleError."""
    if is_temporary(location):
        raise InvalidInputError(
            f"{location} is temporary: Spark deletes it when the query ends.",
            hint="Start the query with a checkpointLocation.",
        )
    old = Checkpoint(location, options)
    if not old.newest_version:
        raise LifecycleError(
            f"{old.place.url} has no committed batch yet.", hint="Call again when the first one is committed."
        )
    old.refuse_other_provider()
    if not old.operators():
        raise InvalidInputError(
            f"{old.place.url} has no state, so there is nothing to rescale.",
            hint="A query without state has as many partitions as its input.",
        )
    return old


def _refuse_deletion(old: Checkpoint) -> None:
    """Raise InvalidInputError if the old checkpoint cannot be deleted, because something else is there."""
    refuse_other_files(old.place)
    for _, identity in old.stores():
        place = old.find_place(identity)
        if not place.url.startswith(f"{old.place.url}/"):
            raise InvalidInputError(
                f"{old.place.url} has its state in {place.url} (option remote), which would not be deleted with it.",
                hint="Leave out old_checkpoint='delete', and delete both yourself.",
            )
        return
