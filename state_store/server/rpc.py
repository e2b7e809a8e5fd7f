"""The protocol between the JVM and the state server: each request and each answer is one JSON object.

An answer is ``{"ok": {...}}`` or ``{"error": {"kind", "message", "hint", "retryable"}}``. Requests and answers carry
names and numbers, never rows.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from pyspark_ckpt.state_store import options as option_table
from pyspark_ckpt.state_store.blobs import HadoopSettings
from pyspark_ckpt.state_store.blobs.base.retries import ask_now
from pyspark_ckpt.state_store.checkpoints.missing_state import explain_missing
from pyspark_ckpt.state_store.errors import CkptError, InternalError, InvalidInputError, NotFoundError, StorageError
from pyspark_ckpt.state_store.format.keys import EMPTY, MARKER_KEY
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.format.remote import is_store_name
from pyspark_ckpt.state_store.identity import Caller, Identity
from pyspark_ckpt.state_store.json_objects import DAMAGE, MAX_LONG, Change, Count
from pyspark_ckpt.state_store.server.received_secrets import ReceivedSecrets
from pyspark_ckpt.state_store.server.stores import Stores
from pyspark_ckpt.state_store.transactions.staged_tables import Seal
from pyspark_ckpt.state_store.transactions.store import Store
from pyspark_ckpt.state_store.transactions.ticket import WorkerTask
from pyspark_ckpt.state_store.transactions.transaction import Transaction

PROTOCOL = 4
"""Changes with the hello, a call or an answer. The jar has the same number, in ``ServerProcess.Protocol``."""

Version = Annotated[int, msgspec.Meta(ge=0, lt=MAX_LONG)]
"""A version that another can follow: it is less than the largest long."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all requests. ``again``: the request comes from a task that was tried before and failed."""

    again: bool = False


class Open(Request, frozen=True):
    """Open a store. ``epoch``: of the run, if its driver has taken one; else 0.

    ``hadoop``: settings of Hadoop's connectors. ``secrets``: the number of the secrets to use, see ReceivedSecrets.
    """

    state_dir: str
    checkpoint_root: str
    operator: Count
    partition: Count
    name: str
    run_id: str
    format: int
    min_versions_to_retain: Count
    epoch: Count = 0
    options: dict[str, str] = {}
    hadoop: dict[str, str] = {}
    secrets: int | None = None


class Begin(Request, frozen=True):
    """Begin a transaction."""

    handle: int
    version: Version
    id: str | None = None
    attempt: Count | None = None
    key_schema: str = ""
    executor: str = ""
    num_partitions: Count | None = None


class Replay(Request, frozen=True):
    """Begin a transaction on a version that is built from the snapshot of version ``start`` and deltas."""

    handle: int
    version: Version
    start: Version
    id: str | None = None
    start_id: str | None = None


class OpenChanges(Request, frozen=True):
    """Open a feed of the changes of versions ``first`` to ``last``. ``id`` is the id of the last version."""

    handle: int
    first: Count
    last: Version
    id: str | None = None


class FeedRequest(Request, frozen=True):
    """Name an open feed."""

    feed: int


class CreateState(Request, frozen=True):
    """Find or create a state."""

    txn: int
    name: str
    descriptor: Descriptor


class DropState(Request, frozen=True):
    """Forget a state."""

    txn: int
    name: str


class Commit(Request, frozen=True):
    """Make the next version. ``seals``: size and checksum of ``files`` as their writer made them, by name."""

    txn: int
    files: list[str]
    rows: dict[int, Change] = {}
    num_partitions: Count | None = None
    seals: dict[str, Seal] = {}


class AwaitPack(Request, frozen=True):
    """Wait until a pack is durable that a commit has named."""

    pack: str


class TransactionRequest(Request, frozen=True):
    """Name a transaction."""

    txn: int


class Damage(Request, frozen=True):
    """Report that the local copy of a transaction could not be read. ``failure`` describes the error."""

    txn: int
    failure: str


class HandleRequest(Request, frozen=True):
    """Name an open handle."""

    handle: int


class Snapshot(Request, frozen=True):
    """Make a snapshot if one is due, or at once with ``force``."""

    handle: int
    force: bool = False


class EmptyRequest(Request, frozen=True):
    """A request without content."""


class Dispatcher:
    """Answers requests; the same object serves all connections."""

    def __init__(self, stores: Stores, stop: Callable[[], None], secrets: ReceivedSecrets) -> None:
        """Serve ``stores``. ``stop`` ends the process soon after it returns. ``secrets``: from the JVM."""
        self._stores = stores
        self._secrets = secrets
        self._stop = stop
        self._encoder = msgspec.json.Encoder()
        self._methods: Mapping[str, tuple[msgspec.json.Decoder[Any], Callable[[Any], dict[str, Any]]]] = {
            "open": (msgspec.json.Decoder(Open), self._open),
            "begin": (msgspec.json.Decoder(Begin), self._begin),
            "replay": (msgspec.json.Decoder(Replay), self._replay),
            "open_changes": (msgspec.json.Decoder(OpenChanges), self._open_changes),
            "next_changes": (msgspec.json.Decoder(FeedRequest), self._next_changes),
            "close_changes": (msgspec.json.Decoder(FeedRequest), self._close_changes),
            "create_state": (msgspec.json.Decoder(CreateState), self._create_state),
            "drop_state": (msgspec.json.Decoder(DropState), self._drop_state),
            "commit": (msgspec.json.Decoder(Commit), self._commit),
            "await_pack": (msgspec.json.Decoder(AwaitPack), self._await_pack),
            "await_ingest": (msgspec.json.Decoder(HandleRequest), self._await_ingest),
            "report_damage": (msgspec.json.Decoder(Damage), self._report_damage),
            "abort": (msgspec.json.Decoder(TransactionRequest), self._abort),
            "snapshot": (msgspec.json.Decoder(Snapshot), self._snapshot),
            "cleanup": (msgspec.json.Decoder(HandleRequest), self._cleanup),
            "close": (msgspec.json.Decoder(HandleRequest), self._close),
            "stats": (msgspec.json.Decoder(EmptyRequest), self._stats),
            "stop": (msgspec.json.Decoder(EmptyRequest), self._stop_soon),
        }

    def call(self, method: str, request: str) -> str:
        """Answer one request. A failure is returned as an answer, too."""
        try:
            answer: dict[str, Any] = {"ok": self._dispatch(method, request)}
        except Exception as problem:  # noqa: BLE001 - the boundary of the process: nothing may escape
            answer = {"error": error_answer(problem)}
        return self._encoder.encode(answer).decode()

    def _dispatch(self, method: str, request: str) -> dict[str, Any]:
        if method not in self._methods:
            raise InvalidInputError(f"There is no method {method!r}.", hint="Methods: " + ", ".join(self._methods))
        decoder, answer = self._methods[method]
        try:
            decoded = decoder.decode(request)
        except DAMAGE as problem:
            raise InvalidInputError(f"The request to {method!r} is not valid: {problem}.") from problem
        with ask_now(again=decoded.again):
            return answer(decoded)

    def _open(self, request: Open) -> dict[str, Any]:
        if request.format not in (1, 2):
            raise InvalidInputError(f"The checkpoint format must be 1 or 2, got {request.format}.")
        if not is_store_name(request.name):
            raise InvalidInputError(f"{request.name!r} cannot be the name of a store.")
        secrets = {} if request.secrets is None else self._secrets.await_secrets(request.secrets)
        handle = self._stores.open(
            request.state_dir,
            request.checkpoint_root,
            Identity(request.operator, request.partition, request.name),
            Caller(request.run_id, request.format, request.min_versions_to_retain, request.epoch),
            option_table.parse(request.options),
            HadoopSettings({**request.hadoop, **secrets}),
        )
        return {"handle": handle.number}

    def _begin(self, request: Begin) -> dict[str, Any]:
        handle = self._stores.handle(request.handle)
        store = handle.store
        worker = None
        if request.attempt is not None:
            worker = WorkerTask(request.attempt, request.executor, request.key_schema, request.num_partitions)
        with _looking_elsewhere(store):
            transaction = store.begin(handle.caller, request.version, request.id, worker, request.num_partitions)
        return self._answer_begin(store, transaction, request.id)

    def _replay(self, request: Replay) -> dict[str, Any]:
        handle = self._stores.handle(request.handle)
        store = handle.store
        with _looking_elsewhere(store):
            transaction = store.replay(handle.caller, request.version, request.id, request.start, request.start_id)
        return self._answer_begin(store, transaction, request.id)

    def _answer_begin(self, store: Store, transaction: Transaction, commit_id: str | None) -> dict[str, Any]:
        self._stores.remember(store, transaction)
        base, meta = transaction.base, transaction.meta
        database, is_live = store.local.locate(transaction)
        return {
            "txn": transaction.number,
            "version": base.version,
            "id": None if base == EMPTY else commit_id or base.id,
            "new_id": transaction.new_id,
            "db": str(database),
            "live": is_live,
            "staging": str(transaction.staging),
            "marker_key": MARKER_KEY,
            "marker_value": None if base == EMPTY else base.encode(),
            "next_marker_value": transaction.target.encode(),
            "num_partitions": meta.num_partitions,
            "rows": meta.rows,
            "states": meta.states,
            "metrics": transaction.metrics,
        }

    def _open_changes(self, request: OpenChanges) -> dict[str, Any]:
        handle = self._stores.handle(request.handle)
        with _looking_elsewhere(handle.store):
            return {"feed": self._stores.open_feed(handle, request.first, request.last, request.id)}

    def _next_changes(self, request: FeedRequest) -> dict[str, Any]:
        delta = self._stores.feed(request.feed).next()
        if delta is None:
            return {"version": None}
        store = delta.store
        return {
            "version": store.version,
            "parent": None if store.parent == EMPTY.id else store.parent,
            "files": [str(file) for file in delta.files],
            "states": store.states,
        }

    def _close_changes(self, request: FeedRequest) -> dict[str, Any]:
        self._stores.close_feed(request.feed)
        return {}

    def _create_state(self, request: CreateState) -> dict[str, Any]:
        store, transaction = self._stores.transaction(request.txn)
        return {"number": store.create_state(transaction, request.name, request.descriptor)}

    def _drop_state(self, request: DropState) -> dict[str, Any]:
        store, transaction = self._stores.transaction(request.txn)
        store.drop_state(transaction, request.name)
        return {}

    def _commit(self, request: Commit) -> dict[str, Any]:
        store, transaction = self._stores.transaction(request.txn)
        result = store.commit(transaction, request.files, request.rows, request.num_partitions, request.seals)
        return {
            "version": result.version,
            "id": result.id,
            "pack": result.pack or None,
            "metrics": result.metrics,
            "states": result.states,
        }

    def _await_pack(self, request: AwaitPack) -> dict[str, Any]:
        self._stores.packs.await_pack(request.pack)
        return {}

    def _await_ingest(self, request: HandleRequest) -> dict[str, Any]:
        self._stores.handle(request.handle).store.follower.await_moves()
        return {}

    def _report_damage(self, request: Damage) -> dict[str, Any]:
        found = self._stores.find_transaction(request.txn)
        if found is None:
            return {"discarded": False}
        store, transaction = found
        return {"discarded": store.local.report_damage(transaction, request.failure)}

    def _abort(self, request: TransactionRequest) -> dict[str, Any]:
        found = self._stores.find_transaction(request.txn)
        if found is not None:
            store, transaction = found
            store.abort(transaction)
        return {}

    def _snapshot(self, request: Snapshot) -> dict[str, Any]:
        published, metrics = self._stores.handle(request.handle).maintenance.snapshot(force=request.force)
        return {"version": None if published is None else published.marker.version, "metrics": metrics}

    def _cleanup(self, request: HandleRequest) -> dict[str, Any]:
        handle = self._stores.handle(request.handle)
        if handle.store.is_over(handle.caller):  # its successor decides what may be deleted
            return {"deleted": 0}
        return {"deleted": handle.maintenance.cleanup(handle.caller.min_versions_to_retain)}

    def _close(self, request: HandleRequest) -> dict[str, Any]:
        self._stores.close(request.handle)
        return {}

    def _stats(self, _: EmptyRequest) -> dict[str, Any]:
        return dict(self._stores.stats())

    def _stop_soon(self, _: EmptyRequest) -> dict[str, Any]:
        self._stop()
        return {}


@contextmanager
def _looking_elsewhere(store: Store) -> Iterator[None]:
    """Extend a NotFoundError by the known location of the state."""
    try:
        yield
    except NotFoundError as problem:
        checkpoint, remote = store.checkpoint, store.options.remote
        raise explain_missing(problem, store.place, checkpoint, store.identity, remote) from problem


def error_answer(problem: Exception) -> dict[str, Any]:
    """Return the answer that describes ``problem`` in the protocol."""
    if isinstance(problem, OSError):
        problem = StorageError(f"{type(problem).__name__}: {problem}", outcome="unknown")
    elif isinstance(problem, UnicodeEncodeError) and sys.getfilesystemencoding() != "utf-8":
        problem = InvalidInputError(
            f"{problem.object!r} cannot be the name of a file: the Python of the state server encodes file names in "
            f"{problem.encoding}.",
            hint="Start the executors with a UTF-8 locale (LC_ALL=C.UTF-8) or with PYTHONUTF8=1.",
        )
    elif not isinstance(problem, CkptError):
        trace = "".join(traceback.format_exception(problem))
        problem = InternalError(f"{type(problem).__name__}: {problem}\n{trace}")
    return {
        "kind": problem.kind,
        "message": problem.message,
        "hint": problem.hint,
        "retryable": problem.retryable,
    }
