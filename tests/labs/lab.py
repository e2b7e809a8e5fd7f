"""A client of the engine for tests: the same JSON calls as the shim's, rows as a dict, files as in production."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark_ckpt.state_store import options as option_table
from pyspark_ckpt.state_store.blobs import BlobPlace, HadoopSettings, S3Settings, place_at
from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import encode_hashed_key, state_range
from pyspark_ckpt.state_store.format.names import new_id
from pyspark_ckpt.state_store.server.homes import lock_folder
from pyspark_ckpt.state_store.server.received_secrets import ReceivedSecrets
from pyspark_ckpt.state_store.server.rpc import Dispatcher
from pyspark_ckpt.state_store.server.stores import Stores

TUNING = Tuning(1 << 20)
STATE = "default"
QUERY = "7f4a9a0e-0000-4000-8000-123456789abc"
DESCRIPTOR = {"ordered": False, "multiple_values": False, "internal": False}

Rows = dict[str, str]


class CallError(Exception):
    """What the engine answered instead of a result."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['kind']}: {error['message']} ({error['hint']})")
        self.kind: str = error["kind"]
        self.message: str = error["message"]
        self.hint: str = error["hint"]
        self.retryable: bool = error["retryable"]


def expected(version: int) -> Rows:
    """The rows of a store that has grown to ``version``, see Lab.grow."""
    return {f"key-{v}": f"value-{v}" for v in range(1, version + 1)}


def damage(path: Path) -> None:
    """Flip one byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


class Server:
    """One state server in this process: everything but py4j and the process's life."""

    def __init__(
        self,
        local_dir: Path,
        options: Mapping[str, str],
        places: Callable[[str, S3Settings, HadoopSettings], BlobPlace] = place_at,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = time.monotonic,
        make_id: Callable[[], str] = new_id,
    ) -> None:
        parsed = option_table.parse(options)
        folder = lock_folder(local_dir)
        assert folder is not None, f"another server uses {local_dir}"
        self.stores = Stores(folder, parsed, places=places, clock=clock, uptime=uptime, make_id=make_id)
        self.stop_calls = 0
        self._dispatcher = Dispatcher(self.stores, self._count_stop, ReceivedSecrets())

    def _count_stop(self) -> None:
        self.stop_calls += 1

    def call(self, method: str, **request: object) -> dict[str, Any]:
        answer = json.loads(self._dispatcher.call(method, json.dumps(request)))
        if "error" in answer:
            raise CallError(answer["error"])
        ok: dict[str, Any] = answer["ok"]
        return ok

    def settled(self) -> None:
        """Wait until local databases have followed their commits, and what was to be deleted is gone."""
        for shelf in self.stores._shelves.values():
            shelf.store.follower.await_moves()
        self.stores._resources.sweeper.submit(int).result()

    def compact(self) -> None:
        """Merge the table files of the live databases, as RocksDB does by itself when there are more of them."""
        for shelf in self.stores._shelves.values():
            live = shelf.store.local.copies.live
            if live is not None and live.database is not None:
                live.database.compact()

    def die(self) -> None:
        """Leave what a killed process leaves: local files as they are, no lock."""
        for shelf in self.stores._shelves.values():
            shelf.store.local.closed = True
            shelf.store.local.copies.close(remove=False)
        self.stores._resources.mover.shutdown(wait=True)
        self.stores._resources.pool.shutdown(wait=True)
        self.stores._resources.sweeper.shutdown(wait=True)
        self.stores._folder.close()


class Txn:
    """One transaction: its base's rows, and a write set."""

    def __init__(self, server: Server, answer: dict[str, Any]) -> None:
        self.server = server
        self.answer = answer
        self.number: int = answer["txn"]
        self.rows = read_rows(answer)
        self.changes: dict[str, str | None] = {}

    def put(self, key: str, value: str) -> None:
        self.changes[key] = value

    def remove(self, key: str) -> None:
        self.changes[key] = None

    def stage(self, name: str = "0.sst") -> str:
        """Write the marker row and all changes as one staged file."""
        state = self.server.call("create_state", txn=self.number, name=STATE, descriptor=DESCRIPTOR)["number"]
        rows: dict[bytes, bytes | None] = {
            base64.b64decode(self.answer["marker_key"]): base64.b64decode(self.answer["next_marker_value"])
        }
        for key, value in self.changes.items():
            rows[row_key(state, key)] = None if value is None else value.encode()
        write_table_file(Path(self.answer["staging"]) / name, sorted(rows.items()), TUNING)
        return name

    def commit(self, num_partitions: int | None = None) -> dict[str, Any]:
        state = self.server.call("create_state", txn=self.number, name=STATE, descriptor=DESCRIPTOR)["number"]
        change = len(self.result()) - len(self.rows)
        return self.server.call(
            "commit",
            txn=self.number,
            files=[self.stage()] if self.changes else [],
            rows={str(state): change},
            num_partitions=num_partitions,
        )

    def result(self) -> Rows:
        """Rows as they are after a commit."""
        merged = {**self.rows, **self.changes}
        return {key: value for key, value in merged.items() if value is not None}

    def abort(self) -> None:
        self.server.call("abort", txn=self.number)


class Lab:
    """A query's checkpoint with one store, and a server that can die and come back."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.checkpoint = folder / "checkpoint"
        self.local_dir = folder / "local"
        self.options = options
        self.s3a: dict[str, str] = {}
        self.partition = 3
        self.server = Server(self.local_dir, options)

    @property
    def remote(self) -> Path:
        return self.checkpoint / "state" / "0" / str(self.partition)

    def open(self, run: str = "run-1", fmt: int = 2, keep: int = 100, **more: object) -> int:
        request: dict[str, Any] = {
            "state_dir": str(self.remote),
            "checkpoint_root": str(self.checkpoint),
            "operator": 0,
            "partition": self.partition,
            "name": "default",
            "run_id": run,
            "format": fmt,
            "min_versions_to_retain": keep,
            "options": self.options,
            "hadoop": self.s3a,
        }
        handle: int = self.server.call("open", **{**request, **more})["handle"]
        return handle

    def begin(self, handle: int, version: int, commit_id: str | None = None, **more: object) -> Txn:
        return Txn(self.server, self.server.call("begin", handle=handle, version=version, id=commit_id, **more))

    def grow(self, handle: int, versions: int, start: int = 0, commit_id: str | None = None) -> list[str]:
        """Commit ``versions`` times on top of ``start``, one new row each; the ids."""
        ids = []
        for version in range(start, start + versions):
            txn = self.begin(handle, version, commit_id)
            txn.put(f"key-{version + 1}", f"value-{version + 1}")
            commit_id = txn.commit()["id"]
            ids.append(str(commit_id))
        return ids

    def grow_with_snapshots(self, versions: int) -> list[str]:
        """``grow`` from nothing, with a snapshot of every second version; the ids."""
        handle, ids = self.open(), list[str]()
        for version in range(versions):
            ids += self.grow(handle, 1, version, ids[-1] if ids else None)
            self.begin(handle, version + 1, ids[-1]).abort()
            if version % 2:
                self.server.call("snapshot", handle=handle, force=True)
        return ids

    def name_query(self) -> None:
        """Write the file in which Spark keeps the query's id, QUERY."""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))

    def name_operator(self) -> None:
        """Write the file in which Spark describes the query's operator."""
        path = self.checkpoint / "state" / "0" / "_metadata" / "metadata"
        path.parent.mkdir(parents=True)
        path.write_bytes(describe_operator(0, "stateStoreSave", ["default"], 1))

    def restart(self, *, lose_local: bool = False) -> None:
        self.server.die()
        if lose_local:
            self.local_dir = self.local_dir.with_name(self.local_dir.name + "+")
        self.server = Server(self.local_dir, self.options)

    def objects(self, suffix: str = "") -> list[str]:
        """Names of all remote objects, those of the table folder included."""
        files = [path for path in self.remote.rglob("*") if path.is_file()]
        return sorted(str(path.relative_to(self.remote)) for path in files if path.name.endswith(suffix))

    def log_commit(self, batch: int, ids: list[str] | None, partition: int | None = None) -> None:
        """Write an entry of Spark's commit log, with ids (format 2) or without (format 1)."""
        folder = self.checkpoint / "commits"
        folder.mkdir(parents=True, exist_ok=True)
        if ids is None:
            text = 'v1\n{"nextBatchWatermarkMs":0}'
        else:
            named = json.dumps({"0": [[]] * (self.partition if partition is None else partition) + [ids]})
            text = 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":' + named + "}"
        (folder / str(batch)).write_text(text)


def snapshot(lab: Lab, handle: int, *, force: bool = True) -> dict[str, Any]:
    """Ask for a snapshot, which is made when it is due, or at once."""
    return lab.server.call("snapshot", handle=handle, force=force)


def grown(lab: Lab, versions: int, every: int) -> tuple[int, list[str]]:
    """A store of ``versions`` versions with a snapshot of every ``every``-th."""
    handle, ids = lab.open(), list[str]()
    while len(ids) < versions:
        ids += lab.grow(handle, min(every, versions - len(ids)), len(ids), ids[-1] if ids else None)
        lab.begin(handle, len(ids), ids[-1]).abort()
        snapshot(lab, handle)
    return handle, ids


def describe_operator(number: int, name: str, stores: Sequence[str], partitions: int) -> bytes:
    """What Spark writes of an operator into ``_metadata/metadata``."""
    described = [{"storeName": store, "numColsPrefixKey": 0, "numPartitions": partitions} for store in stores]
    info = {"operatorInfo": {"operatorId": number, "operatorName": name}, "stateStoreInfo": described}
    return f"v1\n{json.dumps(info)}".encode()


def row_key(state: int, key: str) -> bytes:
    """Key bytes of a row."""
    return encode_hashed_key(state, row_hash(key), key.encode())


def row_hash(key: str) -> int:
    """The hash of a key, without a sign. It is made up but fixed."""
    return sum(key.encode()) * 2654435761 % (1 << 32)


def read_rows(answer: Mapping[str, Any]) -> Rows:
    """All rows of the state in the database that ``begin`` answered with, read as another process would."""
    states = [state for state in answer["states"] if state["name"] == STATE]
    database = _reader(Path(answer["db"]))
    try:
        rows = dict(database.rows())
        marker = rows.pop(base64.b64decode(answer["marker_key"]), None)
        expected = answer["marker_value"]
        assert marker == (None if expected is None else base64.b64decode(expected)), "the marker row is another's"
        if not states:
            assert not rows
            return {}
        first, last = state_range(states[0]["number"])
        assert all(first <= key < last for key in rows)
        found = {key[6:].decode(): value.decode() for key, value in rows.items()}
        assert states[0]["rows"] == len(found) == answer["rows"], "row counts are exact"
        return found
    finally:
        database.close()


def _reader(folder: Path) -> Database:
    """Open a database that another thread compacts: a file may go between the manifest's reading and its opening."""
    for _ in range(20):
        try:
            return Database(folder, TUNING, read_only=True)
        except FormatError as problem:
            last = problem
            time.sleep(0.01)
    raise last
