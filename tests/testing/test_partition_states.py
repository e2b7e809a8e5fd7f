"""Operator lists and broadcast states in a harness: values, both forms, restarts, savepoints at other parallelisms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.task.user_errors import ProcessorError
from pyspark_ckpt.state_store.attempts.agreement import Agreement
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint
from pyspark_ckpt.testing import Harness, local_query

RULES = "name string, lowest int"
OUTPUT = "user string, rule string, amount int"
AMOUNTS = [(f"user-{n}", n) for n in range(24)]


class Matches(ckpt.KeyedProcessor):
    rules = ckpt.BroadcastState("rules", "string", "int")
    seen = ckpt.OperatorListState("seen", "string")
    everyones = ckpt.OperatorListState("everyones", "int", redistribute="union")
    total = ckpt.ValueState("total", "int", default=0)

    def process_broadcast(self, ctx: ckpt.Context, rows: Sequence[Any]) -> None:
        for row in rows:
            self.rules.put(row.name, row.lowest)
        self.everyones.add(ctx.batch_id)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]]:  # noqa: ANN401
        for row in rows:
            self.total.update(self.total.value() + row.amount)
            self.seen.add(key.user)
            yield from ((key.user, name, row.amount) for name, lowest in self.rules.items() if row.amount >= lowest)


class VectorMatches(ckpt.VectorProcessor):
    rules = ckpt.BroadcastState("rules", "string", "int")
    seen = ckpt.OperatorListState("seen", "string")

    def process_broadcast_batch(self, _ctx: ckpt.Context, batch: pa.Table) -> None:
        self.rules.put_entries(batch["name"], batch["lowest"])

    def process_batch(self, _ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        self.seen.add_values(batch["user"].combine_chunks())
        limits = self.rules.to_table()
        rows = [
            (user, rule, amount)
            for user, amount in zip(batch["user"].to_pylist(), batch["amount"].to_pylist(), strict=True)
            for rule, lowest in zip(limits["key"].to_pylist(), limits["value"].to_pylist(), strict=True)
            if amount >= lowest
        ]
        names = {"user": pa.string(), "rule": pa.string(), "amount": pa.int32()}
        return pa.table(
            {name: pa.array([row[place] for row in rows], kind) for place, (name, kind) in enumerate(names.items())}
        )


def start(processor: Any, **how: Any) -> Harness:  # noqa: ANN401
    stream = testing.keyed("user string, amount int", "user", broadcast=testing.BroadcastColumns(RULES), **how)
    return stream.process(processor, OUTPUT, mode="append")


@pytest.mark.parametrize("make", [Matches, VectorMatches])
def test_rules_reach_all_partitions_before_the_other_rows_of_a_batch(make: Any) -> None:  # noqa: ANN401
    with start(make(), parallelism=4) as harness:
        assert sorted(harness.run(AMOUNTS, broadcast=[("high", 22), ("all", 23)])) == [
            ("user-22", "high", 22),
            ("user-23", "all", 23),
            ("user-23", "high", 23),
        ]
        assert harness.run(broadcast=[("high", None), ("none", 99)]) == []
        assert harness.run(AMOUNTS) == [("user-23", "all", 23)]
        assert harness.state("rules") == {("all",): 23, ("none",): 99}


def test_a_broadcast_state_survives_a_restart_and_any_parallelism(tmp_path: Path) -> None:
    with start(Matches(), parallelism=3) as harness:
        harness.run(AMOUNTS, broadcast=[("high", 22)])
        harness.restart()
        assert len(harness.run(AMOUNTS)) == 2
        before = harness.states()
        harness.savepoint(tmp_path / "native")
        harness.savepoint(tmp_path / "canonical", kind="canonical")
    for kind in ("native", "canonical"):
        for parallelism in (1, 2, 3, 7):
            with start(Matches(), parallelism=parallelism, savepoint=tmp_path / kind) as restored:
                assert restored.state("rules") == before["rules"]
                assert restored.state("total") == before["total"]
                assert len(restored.run(AMOUNTS)) == 2
                restored.run(broadcast=[("more", 21)])
                assert len(restored.run(AMOUNTS)) == 5


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["native", "canonical"])
@pytest.mark.parametrize("parallelism", [1, 2, 4, 5, 11])
def test_lists_are_split_evenly_or_united(tmp_path: Path, kind: Any, parallelism: int) -> None:  # noqa: ANN401
    with start(Matches(), parallelism=4) as harness:
        harness.run(AMOUNTS, broadcast=[("high", 22)])
        harness.run(AMOUNTS[:5], broadcast=[("high", 22)])
        before = harness.states()
        harness.savepoint(tmp_path / "savepoint", kind=kind)
    in_order = [user for partition in range(4) for user in before["seen"].get((partition,), [])]
    assert len(in_order) == 29
    with start(Matches(), parallelism=parallelism, savepoint=tmp_path / "savepoint") as restored:
        seen = restored.state("seen")
        assert [user for partition in range(parallelism) for user in seen.get((partition,), [])] == in_order
        if parallelism == 4:
            assert seen == before["seen"]
        else:
            sizes = [len(seen.get((partition,), [])) for partition in range(parallelism)]
            assert max(sizes) - min(sizes) <= 1
        assert restored.state("everyones") == {(partition,): [0, 1] * 4 for partition in range(parallelism)}
        restored.run(AMOUNTS, broadcast=[("high", 22)])
        seen = restored.state("seen")
        assert sum(map(len, seen.values())) == 29 + 24
        assert restored.state("everyones")[0,] == [*[0, 1] * 4, 2]


def test_a_list_is_replaced_and_cleared() -> None:
    class Latest(ckpt.KeyedProcessor):
        latest = ckpt.OperatorListState("latest", "int")

        def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
            for row in rows:
                self.latest.add(row.n)
            if key.user == "end":
                self.latest.clear()
                assert list(self.latest.get()) == []
            elif len(list(self.latest.get())) > 2:
                self.latest.update([0, *self.latest.get()][-2:])

    with testing.keyed("user string, n int", "user").process(Latest(), "n int") as harness:
        harness.run([("a", 1), ("a", 2)])
        assert harness.state("latest") == {(0,): [1, 2]}
        harness.run([("a", 3)])
        assert harness.state("latest") == {(0,): [2, 3]}
        harness.run([("end", 4)])
        assert harness.state("latest") == {}
        harness.run([("a", 5)])
        assert harness.state("latest") == {(0,): [5]}


def test_a_program_that_makes_the_copies_differ_is_named() -> None:
    class Differs(Matches):
        def process_broadcast(self, ctx: ckpt.Context, _rows: Sequence[Any]) -> None:
            self.rules.put("partition", ctx.partition)

    with start(Differs(), parallelism=3) as harness:
        with pytest.raises(InvalidInputError, match=r"The copies of broadcast state 'tested/rules' differ: partition"):
            harness.run(broadcast=[("high", 22)])
        assert harness.states()["rules"] == {}


class DiffersOnce(Matches):
    def process_broadcast(self, ctx: ckpt.Context, rows: Sequence[Any]) -> None:
        for row in rows:
            self.rules.put(row.name, ctx.partition if row.name == "partition" else row.lowest)


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_batch_is_run_again_after_the_copies_have_differed(has_ids: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    monkeypatch.setattr(local_query, "has_commit_ids_for_all", lambda: has_ids)  # as with other releases of Spark
    with start(DiffersOnce(), parallelism=3) as harness:
        with pytest.raises(InvalidInputError, match="differ"):
            harness.run(broadcast=[("partition", 22)])
        harness.run(broadcast=[("high", 22)])
        assert harness.state("rules") == {("high",): 22}


def test_copies_that_other_processes_have_made_differ_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(DiffersOnce(), parallelism=3) as harness:
        harness.run(broadcast=[("high", 22)])
        with monkeypatch.context() as patch:  # the commits are as if they were made in other processes
            patch.setattr(Agreement, "require", lambda *_: None)
            harness.run(broadcast=[("partition", 22)])
        with pytest.raises(InvalidInputError, match=r"The copies of broadcast state 'tested/rules' differ"):
            harness.run(AMOUNTS)
        harness.savepoint(tmp_path / "native")
        saved = Savepoint(str(tmp_path / "native"), parse({}))
        assert any("The copies of broadcast state 'tested/rules' differ" in each for each in saved.verify_stores()[1])
        with pytest.raises(FormatError, match="The copies of broadcast state 'tested/rules' differ"):
            harness.savepoint(tmp_path / "canonical", kind="canonical")
    for parallelism in (3, 2):
        with pytest.raises(FormatError, match="The copies of broadcast state 'tested/rules' differ"):
            ckpt.restore(tmp_path / "native", tmp_path / f"restored-{parallelism}", parallelism=parallelism)


def test_broadcast_states_are_written_from_broadcast_rows_alone() -> None:
    class Writes(Matches):
        def process(self, _ctx: ckpt.Context, _key: Any, _rows: Sequence[Any]) -> Iterable[Sequence[Any]]:  # noqa: ANN401
            self.rules.put("mine", 1)
            return []

    with start(Writes()) as harness, pytest.raises((ProcessorError, InvalidInputError), match="outside of process_bro"):
        harness.run(AMOUNTS)


def test_states_of_keys_cannot_be_used_for_broadcast_rows() -> None:
    class Keyed(Matches):
        def process_broadcast(self, _ctx: ckpt.Context, _rows: Sequence[Any]) -> None:
            self.total.update(1)

    with start(Keyed()) as harness, pytest.raises(InvalidInputError, match="no key is being processed"):
        harness.run(broadcast=[("high", 22)])


def test_a_broadcast_input_and_its_method_belong_together() -> None:
    class Plain(ckpt.KeyedProcessor):
        def process(self, _ctx: ckpt.Context, _key: Any, _rows: Sequence[Any]) -> None: ...  # noqa: ANN401

    with pytest.raises(InvalidInputError, match=r"Plain has no process_broadcast\(\)"):
        start(Plain())
    with pytest.raises(InvalidInputError, match="there is no broadcast input"):
        testing.keyed("user string, amount int", "user").process(Matches(), OUTPUT)


@pytest.mark.in_turn
def test_cuts_interleave_broadcast_rows() -> None:
    class Counts(ckpt.KeyedProcessor):
        rules = ckpt.BroadcastState("rules", "string", "int")

        def process_broadcast(self, _ctx: ckpt.Context, rows: Sequence[Any]) -> None:
            for row in rows:
                self.rules.put(row.name, row.lowest)

        def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]]:  # noqa: ANN401
            assert ctx.partitions == 2
            yield from ((key.user, str(self.rules.get("high")), row.amount) for row in rows)

    rows = {"": AMOUNTS[:6], "broadcast": [("high", 22)]}
    with pytest.raises(AssertionError, match=r"(?s)The result depends on the batches.*'None'"):
        testing.check_cuts(lambda: start(Counts(), parallelism=2), rows)


class Sample(ckpt.KeyedProcessor):
    sample = ckpt.OperatorListState("sample", "int")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        self.sample.update([*self.sample.get(), *(row.n for row in rows)][-100:])


def test_what_replaces_a_list_again_and_again_leaves_little() -> None:
    with testing.keyed("user int, n int", "user").process(Sample(), "n int") as harness:
        harness.run([(n, n) for n in range(500)])
        assert harness.metrics["worker_rows"] == 100
        harness.run([(n, n) for n in range(500)])
        assert harness.metrics["worker_rows"] == 200
        assert len(harness.state("sample")[0,]) == 100


class Long(ckpt.VectorProcessor):
    long = ckpt.OperatorListState("long", "bigint")

    def process_batch(self, _ctx: ckpt.VectorContext, batch: pa.Table) -> None:
        self.long.add_values(batch["n"])


@pytest.mark.in_turn
@pytest.mark.parametrize("memory", ["1m", "64m"])
def test_long_lists_are_read_with_their_indexes_and_spilled(tmp_path: Path, memory: str) -> None:
    conf = {"spark.sql.streaming.stateStore.ckpt.workerMemory": memory}
    stream = testing.keyed("user bigint, n bigint", "user", parallelism=2, conf=conf, folder=tmp_path / "it")
    rows = [(n, n) for n in range(40_000)]
    with stream.process(Long(), "n bigint") as harness:
        harness.run(rows[:30_000])
        harness.run(rows[30_000:])
        harness.savepoint(tmp_path / "canonical", kind="canonical")
        for place in (harness.checkpoint, tmp_path / "canonical"):
            with ckpt.reading.open_state(place, uid="tested", state="long") as state:
                table = state.to_arrow().to_pandas()
            assert sorted(table["value"]) == list(range(40_000))
            for _, of_partition in table.groupby("partition"):
                assert of_partition["index"].tolist() == list(range(len(of_partition)))
