"""All stores of one state server, their open handles and their transactions."""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from weakref import WeakValueDictionary

from pyspark_ckpt.state_store.attempts.agreement import Agreement
from pyspark_ckpt.state_store.attempts.runs import Epochs, KnownRuns
from pyspark_ckpt.state_store.blobs import (
    BlobPlace,
    HadoopSettings,
    MeteredPlace,
    RetryPolicy,
    S3Settings,
    Traffic,
    place_at,
    with_retries,
)
from pyspark_ckpt.state_store.blobs.base.place_clock import PlaceTimes
from pyspark_ckpt.state_store.checkpoints import ownership
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format import remote
from pyspark_ckpt.state_store.format.names import new_id
from pyspark_ckpt.state_store.identity import Caller, Identity
from pyspark_ckpt.state_store.local.boot import boot_id
from pyspark_ckpt.state_store.local.column_files import ColumnFiles
from pyspark_ckpt.state_store.local.files import make_folder
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.packs.deferred import DeferredPacks, KnownPacks
from pyspark_ckpt.state_store.packs.gathering import Gathering
from pyspark_ckpt.state_store.packs.lineages import read_lineage
from pyspark_ckpt.state_store.packs.query_packs import QueryPacks
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from pyspark_ckpt.state_store.packs.tasks import OpenTasks
from pyspark_ckpt.state_store.restore.changes import ChangeFeed, list_steps
from pyspark_ckpt.state_store.server.homes import LockedFolder
from pyspark_ckpt.state_store.server.maintenance import Maintenance
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast
from pyspark_ckpt.state_store.transactions.context import SharedResources, StoreContext
from pyspark_ckpt.state_store.transactions.operator_states import KnownStates, OperatorStates
from pyspark_ckpt.state_store.transactions.store import Store
from pyspark_ckpt.state_store.transactions.transaction import Transaction

TRANSFER_THREADS = 8
MOVER_THREADS = 2
PACKER_THREADS = 8
ENDED_KEPT = 1024
CACHE_SHARE = 0.75
ADOPTION_S = 3600.0
"""Local copies of an earlier process are deleted if nobody has asked for them by then."""

_Query: TypeAlias = tuple[str, S3Settings, HadoopSettings]
"""The URL of a checkpoint and the settings by which it is reached."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(frozen=True)
class Access:
    """A state folder, its checkpoint, and all options and settings. Opens with equal ``Access`` share one store."""

    url: str
    checkpoint: str
    options: Options
    hadoop: HadoopSettings


@dataclass(frozen=True)
class Handle:
    """One open of a store."""

    number: int
    access: Access
    store: Store
    maintenance: Maintenance
    caller: Caller


@dataclass
class _Shelf:
    store: Store
    maintenance: Maintenance
    folder: Path
    handles: int = 0


class Stores:
    """The owner of a local folder and of everything in it. Safe to call from many threads."""

    def __init__(
        self,
        folder: LockedFolder,
        options: Options,
        *,
        places: Callable[[str, S3Settings, HadoopSettings], BlobPlace] = place_at,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = time.monotonic,
        make_id: Callable[[], str] = new_id,
    ) -> None:
        """Use the copies that an earlier process left in ``folder``, unless the machine was booted since then.

        ``folder`` belongs to the stores, which unlock it when they are shut down. ``places`` returns the place of a
        URL. Retention uses ``clock`` to find the age of a place's objects. ``uptime`` tells when unrequested local
        copies may go: it is never set back. ``make_id`` returns random ids of 32 hexadecimal digits, for commits and
        for names of objects and folders.
        """
        self.local_dir = local_dir = folder.path
        self.memory_bytes = options.server_memory_bytes
        self._places = places
        self._folder = folder
        _tidy(local_dir, keep_copies=folder.is_trusted)
        self._resources = SharedResources(
            local_dir=local_dir,
            tuning=Tuning(int(self.memory_bytes * CACHE_SHARE)),
            pool=ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="transfer"),
            sweeper=ThreadPoolExecutor(1, thread_name_prefix="sweeper"),
            mover=ThreadPoolExecutor(MOVER_THREADS, thread_name_prefix="mover"),
            packer=ThreadPoolExecutor(PACKER_THREADS, thread_name_prefix="packer"),
            columns=ColumnFiles(local_dir / "stores", options.column_files_bytes),
            failpoints=FailPoints(options.fail_points, local_dir),
            forecast=RestoreForecast(),
            # A random start, so that a transaction of a dead server is never taken for one of this server.
            transaction_numbers=itertools.count(int(make_id()[:12], 16)),
            clock=clock,
            make_id=make_id,
            times=PlaceTimes(clock),
            agreement=Agreement(),
        )
        self._lock = threading.Lock()
        self._handle_numbers = itertools.count(1)
        self._handles: dict[int, Handle] = {}
        self._feed_numbers = itertools.count(1)
        self._feeds: dict[int, tuple[int, ChangeFeed]] = {}
        self._shelves: dict[Access, _Shelf] = {}
        self._taken: set[Path] = set()
        self._adopted: set[Path] = set()
        self._left_over = set((local_dir / "stores").iterdir())
        self._uptime = uptime
        self._started = uptime()
        self._runs: WeakValueDictionary[_Query, KnownRuns] = WeakValueDictionary()
        self._operators: WeakValueDictionary[_Query, KnownStates] = WeakValueDictionary()
        self.packs = KnownPacks()
        """The packs that become durable after their commits were answered."""
        self._packs: WeakValueDictionary[str, QueryPacks] = WeakValueDictionary()
        self._stopping = threading.Event()
        self._transactions: OrderedDict[int, tuple[Store, Transaction]] = OrderedDict()

    def open(
        self,
        state_dir: str,
        checkpoint_root: str,
        identity: Identity,
        caller: Caller,
        options: Options,
        hadoop: HadoopSettings,
    ) -> Handle:
        """Open a store. Opens of one folder with the same options and settings share one store.

        An open with other options gets a separate store, with its own local copies. Handles of an ended run may stay
        open for a while; the next run still gets its own options.

        Makes no remote request, except with ``options.remote``: one for the query's id and one for the owner of its
        folder. A reader outside a query may read a folder that another checkpoint owns. Raises InvalidInputError (a
        place of an unknown kind; the checkpoint is a copy of the one that owns the folder), StorageError, FormatError.
        """
        traffic, failpoints = Traffic(), self._resources.failpoints
        retries = RetryPolicy(options.place_timeout_s, traffic.note_wait, self._stopping)

        def open_place(url: str) -> BlobPlace:
            return with_retries(self._places(url, options.s3, hadoop), retries)

        checkpoint = unmetered = open_place(checkpoint_root)
        root = unmetered
        if options.remote:  # only requests to the place of the state are counted, and the checkpoint is another
            query_folder = remote.query_folder(options.remote, checkpoint)
            if caller.run_id:  # requests of the query, not of this store, are not counted
                ownership.claim(open_place(query_folder), checkpoint, options.remote)
            state_dir, root = f"{query_folder}/{remote.store_folder(identity)}", open_place(query_folder)
        else:
            checkpoint = MeteredPlace(checkpoint, traffic, failpoints)
        packs = open_place(f"{root.url}/{PACKS_FOLDER}")
        place = StorePlace(open_place(state_dir), packs, traffic, failpoints)
        access = Access(place.url, checkpoint.url, options, hadoop)
        with self._lock:
            shelf = self._shelves.get(access)
            if shelf is None:
                query = (checkpoint.url, options.s3, hadoop)
                epochs = Epochs(checkpoint, self._runs.setdefault(query, KnownRuns()))
                known = self._operators.setdefault(query, KnownStates())
                operators = OperatorStates(unmetered, open_place, self._resources.pool, known)
                folder = self._free_folder(_folder_name(identity, place.url))
                store = Store(
                    StoreContext(
                        identity,
                        place,
                        root,
                        checkpoint,
                        traffic,
                        epochs,
                        operators,
                        self._packs_at(packs.url),
                        folder,
                        options,
                        self._resources,
                    )
                )
                if folder not in self._adopted:
                    store.adopt()
                    self._adopted.add(folder)
                self._taken.add(folder)
                shelf = self._shelves[access] = _Shelf(store, Maintenance(store, self._resources), folder)
            self._sweep_left_over()
            shelf.handles += 1
            handle = Handle(next(self._handle_numbers), access, shelf.store, shelf.maintenance, caller)
            self._handles[handle.number] = handle
        if caller.run_id and caller.epoch:  # without the lock, because a commit of the run may wait for its place
            shelf.store.note_run(caller)
        return handle

    def _packs_at(self, url: str) -> QueryPacks:
        """Return what the stores share whose query has its packs at a URL."""
        tasks, its = OpenTasks(), self._resources
        deferred = DeferredPacks(tasks, its.forecast, its.packer, its.make_id, self.packs, its.failpoints)
        return self._packs.setdefault(url, QueryPacks(tasks, Gathering(tasks, its.forecast, its.make_id), deferred))

    def _free_folder(self, name: str) -> Path:
        """Return a local folder that no open store uses: the latest one of an earlier process, else a new one."""
        its = re.compile(rf"{re.escape(name)}(\.\d+)?")
        left = [folder for folder in self._left_over - self._adopted if its.fullmatch(folder.name) and folder.exists()]
        if left:
            return max(left, key=lambda folder: folder.stat().st_mtime)
        names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
        return next(folder for each in names if (folder := self.local_dir / "stores" / each) not in self._taken)

    def _sweep_left_over(self) -> None:
        """Delete the unclaimed folders of an earlier process: another executor probably runs their stores by now."""
        self._left_over -= self._adopted
        if self._left_over and self._uptime() - self._started > ADOPTION_S:
            for folder in self._left_over:
                self._resources.sweeper.submit(shutil.rmtree, folder, ignore_errors=True)
            self._left_over = set()

    def handle(self, number: int) -> Handle:
        """Return an open handle. Raises LifecycleError."""
        handle = self._handles.get(number)
        if handle is None:
            raise LifecycleError(
                f"Handle {number} is not open in this state server.", hint="Open the store again.", retryable=True
            )
        return handle

    def close(self, number: int) -> None:
        """Close a handle and its feeds. The last handle of a store closes the store. A closed handle is no error."""
        with self._lock:
            handle = self._handles.pop(number, None)
            feeds = [feed for feed, (owner, _) in self._feeds.items() if owner == number]
            last = None if handle is None else self._put_back(handle)
        for feed in feeds:
            self.close_feed(feed)
        if last is not None:
            try:
                last.store.close()
            finally:
                with self._lock:
                    self._taken.discard(last.folder)
                    self._forget_transactions(last.store)

    def _put_back(self, handle: Handle) -> _Shelf | None:
        """Give up one use of the store. After the last one, remove the shelf and return it."""
        shelf = self._shelves[handle.access]
        shelf.handles -= 1
        return self._shelves.pop(handle.access) if shelf.handles == 0 else None

    def open_feed(self, handle: Handle, first: int, last: int, commit_id: str | None) -> int:
        """Open a feed of the changes of versions ``first`` to ``last`` and return its number.

        ``commit_id`` is the id of version ``last``. The feed stays open until it or its handle is closed. Raises
        InvalidInputError (not a range of versions), StorageError, and the errors of ``list_steps``.
        """
        store = handle.store
        if not 1 <= first <= last:
            raise InvalidInputError(
                f"{store.identity}: a feed must begin at version 1 or later and not end before it begins, "
                f"got versions {first} to {last}."
            )
        commit = store.find_commit(handle.caller, last, commit_id)
        lineage = read_lineage(store.place, commit, lambda _, marker: marker.version < first)
        steps = list_steps(store.place, commit, first, lineage, str(store.identity))
        folder = self.local_dir / "staging" / f"changes-{self._resources.make_id()[:16]}"
        make_folder(folder, self.local_dir)
        feed = ChangeFeed(steps, folder, self._resources.pool)
        with self._lock:
            number = next(self._feed_numbers)
            self._feeds[number] = (handle.number, feed)
            return number

    def feed(self, number: int) -> ChangeFeed:
        """Return an open feed. Raises LifecycleError."""
        found = self._feeds.get(number)
        if found is None:
            raise LifecycleError(f"Change feed {number} is not open in this state server.", hint="Open it again.")
        return found[1]

    def close_feed(self, number: int) -> None:
        """Close a feed. A closed feed is no error."""
        with self._lock:
            found = self._feeds.pop(number, None)
        if found is not None:
            found[1].close()

    def remember(self, store: Store, transaction: Transaction) -> None:
        """Keep ``transaction`` findable by its number, even for a while after its end, until its store is closed."""
        with self._lock:
            if store.closed:  # its transactions have ended, and the close may have forgotten them already
                return
            self._transactions[transaction.number] = (store, transaction)
            surplus = len(self._transactions) - ENDED_KEPT
            if surplus > 0:
                ended = (number for number, (_, other) in self._transactions.items() if other.has_ended)
                for number in list(itertools.islice(ended, surplus)):  # the oldest are first, and have mostly ended
                    del self._transactions[number]

    def _forget_transactions(self, store: Store) -> None:
        """Forget the transactions of a closed store: they have ended, and they would keep it in memory."""
        ended = [number for number, (owner, _) in self._transactions.items() if owner is store]
        for number in ended:
            del self._transactions[number]

    def transaction(self, number: int) -> tuple[Store, Transaction]:
        """Return a transaction and its store. Raises LifecycleError if this server does not know the number."""
        found = self.find_transaction(number)
        if found is None:
            raise LifecycleError(
                f"Transaction {number} is unknown to this state server.",
                hint="Begin a new transaction.",
                retryable=True,
            )
        return found

    def find_transaction(self, number: int) -> tuple[Store, Transaction] | None:
        """Return a transaction and its store, or None."""
        return self._transactions.get(number)

    def stats(self) -> dict[str, int]:
        """Return figures of the whole process."""
        with self._lock:
            stores = [shelf.store for shelf in self._shelves.values()]
        return {
            "memory_bytes": self._resources.tuning.get_used_bytes(),
            "memory_limit_bytes": self.memory_bytes,
            "open_handles": len(self._handles),
            "open_stores": len(stores),
            "open_transactions": sum(store.open_transactions for store in stores),
            "open_files": _open_files(),
        }

    def shut_down(self) -> None:
        """Close everything that is open, delete its local copies, and unlock the local folder.

        Requests that wait for an unavailable place stop waiting.
        """
        self._stopping.set()
        with self._lock:
            stores = [shelf.store for shelf in self._shelves.values()]
            self._shelves.clear()
            self._handles.clear()
            feeds = list(self._feeds)
        self._resources.columns.close()
        for feed in feeds:
            self.close_feed(feed)
        for store in stores:
            store.close()
        self._resources.pool.shutdown(wait=True)
        self._resources.mover.shutdown(wait=True)
        self._resources.packer.shutdown(wait=True)
        self._resources.sweeper.shutdown(wait=True)
        self._folder.close()


def _tidy(local_dir: Path, *, keep_copies: bool) -> None:
    """Remove local files that cannot be used: transactions and readers of a dead server; all copies after a reboot.

    Local files are not fsynced, so they cannot be trusted after a crash of the machine. If other users could write to
    the folder, ``keep_copies`` is False, and the copies are removed, too.
    """
    for folder in ("staging", "tickets", "readers"):
        shutil.rmtree(local_dir / folder, ignore_errors=True)
    booted, current = local_dir / "boot", boot_id().encode()
    if not keep_copies or not booted.exists() or booted.read_bytes() != current:
        shutil.rmtree(local_dir / "stores", ignore_errors=True)
        booted.write_bytes(current)
    for folder in ("staging", "tickets", "stores"):
        make_folder(local_dir / folder, local_dir)


def _folder_name(identity: Identity, url: str) -> str:
    name = _UNSAFE.sub("_", identity.name)[:64]
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    return f"{identity.operator}-{identity.partition}-{name}-{digest}"


def _open_files() -> int:
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
    return sum(1 for _ in folder.iterdir())
