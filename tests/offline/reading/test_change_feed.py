"""The change feed of a state: each version is the one before with the changes of its batch."""

from __future__ import annotations

import base64
import json
import pickle
import random
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.reading import change_feed, open_state
from pyspark_ckpt.savepoints import savepoint
from pyspark_ckpt.state_source import StateDataSource, open_selected
from pyspark_ckpt.state_store.database import write_table_file
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError, LifecycleError, NotFoundError
from pyspark_ckpt.state_store.sst.table import SortedTable
from tests.compat.frozen import unpack
from tests.labs.lab import TUNING, Server
from tests.testing.programs import after

IDENTITY = ("key", "index", "map_key", "at_ms", "namespace")

Version = Mapping[str, list[dict[str, Any]]]
"""Rows by what tells them apart. Some keys of Spark's have several."""


def _by_identity(rows: list[dict[str, Any]]) -> Version:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(repr([row.get(name) for name in IDENTITY]), []).append(row)
    return found


def _version(checkpoint: Path, number: int, **which: Any) -> Version:  # noqa: ANN401
    try:
        with open_state(checkpoint, version=number, **which) as state:
            return _by_identity(state.to_arrow().to_pylist())
    except InvalidInputError as problem:
        assert "has no state" in problem.message  # noqa: PT017 - there was no row yet
        return {}


def _require_fold(checkpoint: Path, **which: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Each version must be that before it with the changes of the batch between them. Returns all changes."""
    with change_feed(checkpoint, **which) as feed:
        first, last = feed.first_batch, feed.last_batch
        rows: list[dict[str, Any]] = feed.to_arrow().to_pylist()
    assert [row["batch_id"] for row in rows] == sorted(row["batch_id"] for row in rows)
    now = dict(_version(checkpoint, first, **which)) if first else {}
    for batch in range(first, last + 1):
        changes = _by_identity(
            [dict(row) for row in rows if row["batch_id"] == batch]  # of this batch
        )
        for identity, changed in changes.items():
            kinds = {(row.pop("batch_id"), row.pop("change_type")) for row in changed}
            assert kinds in ({(batch, "update")}, {(batch, "delete")})
            if kinds == {(batch, "update")}:
                now[identity] = changed
            else:
                now.pop(identity, None)
                assert all(row.get("value") is None for row in changed)
        assert now == _version(checkpoint, batch + 1, **which), batch
    return rows


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["keyed", "aggregation", "join", "session-windows", "with-states"])
def test_each_version_is_the_one_before_with_the_changes_of_its_batch(name: str, tmp_path: Path) -> None:
    checkpoint = unpack("v1", name, tmp_path / "query")
    with open_state(checkpoint) as opened:
        states = [(each.operator.number, each.store, each.stored_name) for each in opened.states]
    found = [_require_fold(checkpoint, operator=number, store=store, state=state) for number, store, state in states]
    assert all(found)


class Everything(ckpt.KeyedProcessor):
    """All kinds of states of keys, written and removed as the rows say."""

    value = ckpt.ValueState("value", "bigint", ttl=ckpt.Ttl("30 minutes", clock="event"))
    items = ckpt.ListState("items", "string")
    recent = ckpt.ListState("recent", "bigint", ttl=ckpt.Ttl("20 minutes", clock="event"))
    entries = ckpt.MapState("entries", "bigint", "string")
    largest = ckpt.ReducingState("largest", "bigint", max)
    wake = ckpt.Timers("wake", clock="event")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> None:  # noqa: ANN401
        """Does what the number of a row says."""
        for row in rows:
            for state in (self.value, self.items, self.recent, self.entries, self.largest):
                if row.n % 7 == 0:
                    state.clear()
            self.value.update(row.n)
            self.items.add(f"{row.n}")
            self.recent.add(row.n)
            self.largest.add(row.n)
            self.entries.put(row.n % 5, f"{row.n}")
            self.entries.remove((row.n + 2) % 5)
            self.wake.register(row.at + timedelta(minutes=row.n % 9))
            if row.n % 11 == 0:
                self.items.update([f"{row.n}", "again"])
                self.value.clear()
                self.largest.clear()

    def on_timer(self, _ctx: ckpt.Context, _key: Any, _timer: ckpt.Timer) -> None:  # noqa: ANN401
        """Frees a list."""
        self.items.clear()


STATES = ("value", "items", "recent", "entries", "largest", "wake")


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a query that wrote and removed rows of all kinds of states, in 16 batches of 3 partitions."""
    folder, chance = tmp_path_factory.mktemp("lived"), random.Random(8)
    stream = ckpt.testing.keyed(
        "user string, n bigint, at timestamp", by="user", uid="all", watermark=("at", "1 minute"),
        folder=folder, parallelism=3,
    )  # fmt: skip
    with stream.process(Everything(), "user string", "update") as harness:
        for batch in range(16):
            harness.run(
                [
                    (f"u{chance.randrange(12)}", chance.randrange(1000), after(3 * batch))
                    for _ in range(chance.randrange(9))
                ]
            )
    return folder / "checkpoint"


@pytest.mark.in_turn
@pytest.mark.parametrize("state", STATES)
def test_the_changes_of_a_keyed_program_lead_from_version_to_version(state: str, lived: Path) -> None:
    rows = _require_fold(lived, uid="all", state=state)
    assert {row["change_type"] for row in rows} == {"update", "delete"}
    assert rows[0]["batch_id"] == 0


class Rules(ckpt.KeyedProcessor):
    """Rules for all, and a list of each partition."""

    rules = ckpt.BroadcastState("rules", "string", "int")
    seen = ckpt.OperatorListState("seen", "string")

    def process_broadcast(self, _ctx: ckpt.Context, rows: Any) -> None:  # noqa: ANN401
        """Puts a rule, or removes it if it has no value."""
        for row in rows:
            if row.value is None:
                self.rules.remove(row.name)
            else:
                self.rules.put(row.name, row.value)

    def process(self, _ctx: ckpt.Context, key: Any, _rows: Any) -> None:  # noqa: ANN401
        """Remembers a user, but at most two."""
        kept = list(self.seen.get())
        self.seen.update([*kept[-1:], key.user])


def test_states_of_partitions_have_changes_too(tmp_path: Path) -> None:
    broadcast = ckpt.testing.BroadcastColumns("name string, value int")
    stream = ckpt.testing.keyed(
        "user string", by="user", uid="all", broadcast=broadcast, folder=tmp_path, parallelism=3
    )
    with stream.process(Rules(), "user string", "append") as harness:
        harness.run([("ada",)], broadcast=[("a", 1), ("b", 2)])
        harness.run([("ada",), ("bob",)], broadcast=[("a", None), ("c", 3)])
        harness.run([("ada",), ("eve",)])
    rules = _require_fold(tmp_path / "checkpoint", uid="all", state="rules")
    assert len(rules) == 4
    with change_feed(tmp_path / "checkpoint", uid="all", state="seen") as feed:
        seen = feed.to_arrow().to_pylist()
    added = [row["value"] for row in seen if row["change_type"] == "update"]
    with open_state(tmp_path / "checkpoint", uid="all", state="seen") as state:
        assert {row["value"] for row in state.to_arrow().to_pylist()} <= set(added)
    assert {row["index"] for row in seen} == {None}
    assert {row["key"]["partition"] for row in seen} <= {0, 1, 2}


@pytest.mark.in_turn
def test_without_deltas_there_are_no_changes(lived: Path, tmp_path: Path) -> None:
    restored = tmp_path / "restored"
    savepoint(lived, tmp_path / "saved", kind="canonical")
    ckpt.restore(tmp_path / "saved", restored, parallelism=2)
    with change_feed(restored, uid="all", state="value") as feed:
        assert (feed.first_batch, feed.last_batch, feed.to_arrow().num_rows) == (16, 15, 0)
    source = StateDataSource({"path": str(restored), "uid": "all", "state": "value", "readChangeFeed": "true"})
    reader = source.reader(source.schema())
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # type: ignore[arg-type]  # as PySpark calls it then
    assert main(["state", "changes", str(restored), "--uid", "all", "--state", "value"]) == 0


def test_batches_are_chosen_by_their_numbers(lived: Path) -> None:
    with change_feed(lived, uid="all", state="value") as feed:
        assert (feed.first_batch, feed.last_batch) == (0, 15)
        rows = feed.to_arrow().to_pylist()
        parts = [batch for each in feed.shown_partitions for batch in feed.batches(each)]
        assert sum(map(len, parts)) == len(rows)
        assert "batches 0 to 15" in repr(feed)
    with change_feed(lived, uid="all", state="value", first_batch=3, last_batch=5) as some:
        assert some.to_arrow().to_pylist() == [row for row in rows if 3 <= row["batch_id"] <= 5]
        assert list(some.to_pandas().batch_id) == [row["batch_id"] for row in rows if 3 <= row["batch_id"] <= 5]


WRONG: Any = "3"  # from Python, which does not check types


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"first_batch": -1}, "first batch must be a number, 0 or more, got -1"),
        ({"last_batch": WRONG}, "last batch must be a number, 0 or more, got '3'"),
        ({"first_batch": 5, "last_batch": 4}, "first batch, 5, must not come after the last one, 4"),
        ({"first_batch": 99}, "has no batch 99: the last committed one is 15"),
        ({"last_batch": 99}, "has no batch 99: the last committed one is 15"),
        ({"state": "vale"}, "Did you mean 'value'"),
        ({"state": None}, "has 6 states"),
    ],
)
def test_what_cannot_be_chosen_is_named(given: dict[str, Any], said: str, lived: Path) -> None:
    with pytest.raises(CkptError, match=said):
        change_feed(lived, **{"uid": "all", "state": "value", **given}).close()


def test_changes_that_are_gone_are_named(lived: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "query"
    shutil.copytree(lived, checkpoint)
    for version in range(1, 5):
        for delta in (checkpoint / "state").rglob(f"{version:020d}-*.delta"):
            delta.unlink()
    with pytest.raises(
        NotFoundError, match=r"changes of batch 3 \(version 4\) are missing; batches 4 to 15 can be read"
    ):
        change_feed(checkpoint, uid="all", state="value", first_batch=2)
    with change_feed(checkpoint, uid="all", state="value") as feed:
        assert feed.first_batch == 4
        (gone,) = (checkpoint / "state" / "0" / "1").glob(f"{8:020d}-*.delta")
        gone.unlink()
        with pytest.raises(NotFoundError):
            feed.to_arrow()


def test_a_feed_that_is_left_early_leaves_nothing(lived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with change_feed(lived, uid="all", state="value") as feed:
        begun = feed.batches()
        next(begun)
        assert list(tmp_path.iterdir())
        begun.close()
        assert not list(tmp_path.iterdir())


def test_a_savepoint_has_no_changes(lived: Path, tmp_path: Path) -> None:
    savepoint(lived, tmp_path / "saved", kind="canonical")
    with pytest.raises(InvalidInputError, match="is a savepoint, which has one version"):
        change_feed(tmp_path / "saved", uid="all", state="value")


def test_the_command_shows_the_changes(lived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    which = ["--uid", "all", "--state", "items"]
    assert main(["state", "changes", str(lived), *which, "--first-batch", "2", "--format", "json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with change_feed(lived, uid="all", state="items", first_batch=2) as feed:
        expected = feed.to_arrow().to_pylist()
    names = ("batch_id", "change_type", "index", "value")
    assert [[row[name] for name in names] for row in shown] == [[row[name] for name in names] for row in expected]
    assert main(["state", "changes", str(lived), *which, "--last-batch", "3", "--limit", "2"]) == 0
    assert "update" in capsys.readouterr().out


def test_the_source_reads_the_same_changes_in_tasks(lived: Path) -> None:
    options = {"path": str(lived), "uid": "all", "state": "value", "ReadChangeFeed": "TRUE", "changeStartBatchId": "2"}
    source = StateDataSource(options)
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))  # noqa: S301 - as Spark hands it to tasks
    with change_feed(lived, uid="all", state="value", first_batch=2) as feed:
        expected = feed.to_arrow().to_pylist()
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    found = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"readChangeFeed": "perhaps"}, "readChangeFeed of ckpt_state must be true or false, got 'perhaps'"),
        ({"readChangeFeed": "true", "version": "3"}, "version of ckpt_state has no meaning with readChangeFeed"),
        ({"changeEndBatchId": "3"}, "changeEndBatchId of ckpt_state has no meaning without readChangeFeed"),
        ({"readChangeFeed": "true", "changeStartBatchId": "x"}, "changeStartBatchId of ckpt_state must be a whole"),
        ({"readChangeFeed": "true", "changeEndBatchId": "²"}, "changeEndBatchId of ckpt_state must be a whole"),
        ({"version": "9" * 5000}, "version of ckpt_state must be a whole"),
    ],
)
def test_options_of_the_source_that_do_not_fit_are_named(options: dict[str, str], said: str, lived: Path) -> None:
    with pytest.raises(InvalidInputError, match=said):
        open_selected({"path": str(lived), "uid": "all", "state": "value", **options})


def test_a_state_that_was_dropped_and_made_again_loses_its_rows(tmp_path: Path) -> None:
    checkpoint = unpack("v1", "aggregation-format-1", tmp_path / "query")
    with open_state(checkpoint, operator=0) as state:
        partitions, before, batch = state.partitions, state.count(), state.version
    server = Server(tmp_path / "local", {})
    for partition in range(partitions):
        _drop_and_make_again(server, checkpoint, partition, batch)
    for log in ("offsets", "commits"):
        shutil.copy(checkpoint / log / f"{batch - 1}", checkpoint / log / f"{batch}")
    server.stores.shut_down()
    for first in (None, batch):
        with change_feed(checkpoint, operator=0, first_batch=first) as feed:
            rows = feed.to_arrow().to_pylist()
        kinds = [row["change_type"] for row in rows if row["batch_id"] == batch]
        assert (kinds.count("delete"), kinds.count("update")) == (before, partitions)


def _drop_and_make_again(server: Server, checkpoint: Path, partition: int, version: int) -> None:
    """Commit as a variable of transformWithState is removed and made anew: with another number, and one of its rows."""
    handle = server.call(
        "open", state_dir=str(checkpoint / "state" / "0" / str(partition)), checkpoint_root=str(checkpoint),
        operator=0, partition=partition, name="default", run_id="run", format=1, min_versions_to_retain=100,
    )["handle"]  # fmt: skip
    begun = server.call("begin", handle=handle, version=version)
    (described,) = (each["descriptor"] for each in begun["states"] if each["name"] == "default")
    with open_state(checkpoint, operator=0, version=version) as state, state.splits.open_rows(partition) as rows:
        old = list(rows)
    server.call("drop_state", txn=begun["txn"], name="default")
    number = server.call("create_state", txn=begun["txn"], name="default", descriptor=described)["number"]
    key, value = old[0]
    written = {
        base64.b64decode(begun["marker_key"]): base64.b64decode(begun["next_marker_value"]),
        **{key: None for key, _ in old},
        number.to_bytes(2, "big") + key[2:]: value,
    }
    write_table_file(Path(begun["staging"]) / "0.sst", sorted(written.items()), TUNING)
    server.call("commit", txn=begun["txn"], files=["0.sst"], rows={f"{number}": 1}, num_partitions=1)


def test_a_feed_that_is_closed_says_so(lived: Path) -> None:
    with change_feed(lived, uid="all", state="value") as feed:
        assert feed.to_arrow().num_rows > 0
    with pytest.raises(LifecycleError, match="is closed"):
        feed.to_arrow()


def test_large_values_are_read_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "large.sst"
    write_table_file(path, [(f"key {n:03d}".encode(), bytes([n]) * (1 << 20)) for n in range(100)], TUNING)
    with closing(SortedTable(path, (b"k", b"l"))) as table:
        portions = [len(each) for each in table.span(b"k", b"l").entries()]
    assert sum(portions) == 100
    assert max(portions) <= 4
