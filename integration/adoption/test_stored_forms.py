"""The forms in which Spark's own providers can store rows: each moves in and out as if the query had not moved."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.adoption.halves import CASES, CHANGELOG, WITH_CHANGELOG, play
from integration.operators.providers import CHECKPOINT_FORMAT, HDFS_BACKED, OURS, ROCKSDB, Provider
from integration.operators.replay import Case, collect_into, replay, run, write_inputs
from integration.savepoints import test_rescale
from integration.savepoints.test_rescale import without_partitions
from integration.short import has
from pyspark_ckpt.moving import adopt, hand_back
from pyspark_ckpt.offline.reading import open_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.replay import Lines
    from pyspark_ckpt.offline.adopting.stores import Provider as Kind

_STORE = "spark.sql.streaming.stateStore."
PROVIDERS = {
    "rocksdb": ROCKSDB,
    "changelog": WITH_CHANGELOG,
    "hdfs": HDFS_BACKED,
    "format 2": Provider("format 2", ROCKSDB.provider_class, {CHECKPOINT_FORMAT: "2", **CHANGELOG}),
}
SUMS = {f"{_STORE}rowChecksum.enabled": "true"}
AVRO = {f"{_STORE}encodingFormat": "avro"}
LISTS = "transformWithState" if has("4.1") else "join, format 3"


def list_forms() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield an operator, a provider, and settings that change how its rows are stored."""
    for codec in ("lzf", "zstd", "snappy"):
        for provider in ("hdfs", "changelog"):
            yield "aggregation by keys of all types", provider, {f"{_STORE}compression.codec": codec}
    for compression in ("none", "snappy", "zlib", "bzip2", "lz4hc", "zstd"):
        yield "aggregation of windows", "rocksdb", {f"{_STORE}rocksdb.compression": compression}
        yield LISTS, "rocksdb", {f"{_STORE}rocksdb.compression": compression}
    if has("4.1"):
        yield from _list_checked()
        yield from _list_avro()


def _list_checked() -> Iterator[tuple[str, str, dict[str, str]]]:
    for name in ("aggregation by keys of all types", "session windows", "deduplication"):
        yield name, "hdfs", SUMS
        yield name, "changelog", SUMS
    for name in ("join, format 3", "join, format 4", "transformWithState"):
        for provider in ("rocksdb", "changelog", "format 2"):
            yield name, provider, SUMS
    yield "python groups", "rocksdb", SUMS
    yield "join, format 2", "hdfs", SUMS


def _list_avro() -> Iterator[tuple[str, str, dict[str, str]]]:
    for name in ("transformWithState", "transformWithState, times to live"):
        for provider in ("rocksdb", "changelog", "format 2"):
            yield name, provider, AVRO
        yield name, "changelog", {**AVRO, **SUMS}


def _name(each: tuple[str, str, dict[str, str]]) -> str:
    name, provider, settings = each
    return f"{name}-{provider}-{'-'.join(f'{key.removeprefix(_STORE)}={value}' for key, value in settings.items())}"


EACH = [pytest.param(*each, id=_name(each)) for each in list_forms()]


def _take(name: str, settings: dict[str, str]) -> Case:
    case, _ = CASES.get(name) or test_rescale.CASES[name]
    return replace(case, settings={**case.settings, **settings})


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "provider", "settings"), EACH)
def test_a_query_goes_on_with_rows_in_any_form(
    name: str, provider: str, settings: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    case, before = _take(name, settings), PROVIDERS[provider]
    expected = replay(spark, case, before, tmp_path / "expected")
    ours = OURS if has("4.2") else OURS.in_format(int(before.settings[CHECKPOINT_FORMAT]))
    batches, state = play(spark, case, (before, ours), adopt, tmp_path / "actual")
    assert any(expected.batches.values())
    assert batches == expected.batches
    assert without_partitions(state) == without_partitions(expected.state)


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "provider", "settings"), EACH)
def test_a_query_goes_on_without_this_store_with_rows_in_any_form(
    name: str, provider: str, settings: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    case, after = _take(name, settings), PROVIDERS[provider]
    expected = replay(spark, case, after, tmp_path / "expected")
    kind: Kind = "hdfs" if provider == "hdfs" else "rocksdb"
    batches, state = play(spark, case, (OURS, after), lambda old, new: hand_back(old, new, kind), tmp_path / "actual")
    assert any(expected.batches.values())
    assert batches == expected.batches
    assert state == expected.state


@pytest.mark.in_turn
@pytest.mark.skipif(not has("4.1"), reason="Spark's processors in Python are newer")
@pytest.mark.parametrize("direction", ["in", "out"])
def test_values_of_earlier_schemas_move(direction: str, spark: SparkSession, tmp_path: Path) -> None:
    """One batch with a schema, and three with the next: the query moves when it has values of both."""
    from integration.operators.test_transform_with_state import EVENTS, evolving

    schemas = (
        ("id int, gone string, deep struct<a: int, b: string>", ("x", (1, "b"))),
        ("id bigint, deep struct<c: array<int>, a: bigint>, added string", (([1, 2], 3), "new")),
    )
    courses = {"expected": (ROCKSDB,) * 4, "moved": (ROCKSDB, ROCKSDB, OURS, OURS)}
    if direction == "out":
        courses["moved"] = (OURS, OURS, WITH_CHANGELOG, WITH_CHANGELOG)
    found: dict[str, dict[int, Lines]] = {name: {} for name in courses}
    for name, course in courses.items():
        checkpoint = "checkpoint"
        for number, provider in enumerate(course):
            case = Case(evolving(*schemas[number > 0]), EVENTS, "update", one_batch_a_run=True)
            if name == "moved" and number == 2:
                move = adopt if direction == "in" else hand_back
                move(tmp_path / name / "checkpoint", tmp_path / name / "other")
                checkpoint = "other"
            write_inputs(case, tmp_path / name, number, number + 1)
            session = (provider.in_format(1) if number < 2 else provider).session(spark, **AVRO)
            run(session, case, tmp_path / name, collect_into(found[name]), checkpoint)
    assert found["moved"] == found["expected"]
    assert len(found["moved"]) == 4


@pytest.mark.parametrize("compression", ["zlib", "bzip2"])
def test_tables_of_much_state_move(compression: str, spark: SparkSession, tmp_path: Path) -> None:
    """RocksDB compresses no block that stays about as large: the states of other tests are too small."""
    settings = {f"{_STORE}rocksdb.compression": compression}
    (tmp_path / "in").mkdir()
    found: dict[int, Lines] = {}
    for number, (provider, checkpoint) in enumerate([(ROCKSDB, "old"), (ROCKSDB, "old"), (OURS.in_format(1), "new")]):
        if checkpoint == "new":
            assert adopt(tmp_path / "old", tmp_path / "new").states[0].digest.rows == 6000
        (tmp_path / "in" / f"{number}.json").write_text(
            "".join(f'{{"user": "a user of many {n}"}}\n' for n in range(number * 3000, number * 3000 + 3000))
        )
        session = provider.session(spark, **settings)
        rows = session.readStream.schema("user string").json(str(tmp_path / "in")).groupBy("user").count()
        writer = rows.writeStream.outputMode("complete").option("checkpointLocation", str(tmp_path / checkpoint))
        writer.foreachBatch(collect_into(found)).trigger(availableNow=True).start().awaitTermination()
    assert found[2] == tuple(sorted(f"Row(user='a user of many {n}', count=1)" for n in range(9000)))


@pytest.mark.in_turn
@pytest.mark.skipif(not has("4.1"), reason="Spark's processors in Python are newer")
def test_values_of_all_types_are_the_same_whether_they_were_avro(spark: SparkSession, tmp_path: Path) -> None:
    from integration.operators.processors import EveryType

    def run_on(session: SparkSession, checkpoint: Path, numbers: range) -> Lines:
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{numbers.start}.json").write_text(
            "".join(
                f'{{"user": "u{n % 3}", "day": "1582-10-0{1 + n % 2}", "money": "-0.5", "number": {n}}}\\n'
                for n in numbers
            )
        )
        schema = "user string, day date, money decimal(20,2), number int"
        rows = session.readStream.schema(schema).json(str(tmp_path / "in")).groupBy("user", "day", "money")
        frame = rows.transformWithState(EveryType(), "user string, shown string", "Update", "None")
        shown: dict[int, Lines] = {}
        writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
        writer.foreachBatch(collect_into(shown)).trigger(availableNow=True).start().awaitTermination()
        return shown[max(shown)]

    found = {}
    for name, settings in {"rows": {}, "avro": AVRO, "checked": {**AVRO, **SUMS}}.items():
        (tmp_path / "in").mkdir(exist_ok=True)
        for old in (tmp_path / "in").iterdir():
            old.unlink()
        run_on(WITH_CHANGELOG.session(spark, **settings), tmp_path / name, range(40))
        adopt(tmp_path / name, tmp_path / f"{name} in")
        states = []
        for state in ("one", "all", "words"):
            with open_state(tmp_path / f"{name} in", operator=0, state=state) as opened:
                states.append(sorted(map(repr, opened.to_arrow().to_pylist())))
        hand_back(tmp_path / f"{name} in", tmp_path / f"{name} out")
        ours = run_on(OURS.in_format(1).session(spark, **settings), tmp_path / f"{name} in", range(40, 60))
        (tmp_path / "in" / "40.json").unlink()
        theirs = run_on(ROCKSDB.session(spark, **settings), tmp_path / f"{name} out", range(40, 60))
        assert ours == theirs
        found[name] = [*states, ours]
    assert found["rows"] == found["avro"] == found["checked"]
    assert all(map(len, found["rows"]))
