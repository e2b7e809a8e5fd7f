"""Random changes of states of Spark's own operators, many of which have lists of values, against plain lists.

What Spark keeps beside a state, such as counts of its values, must be what follows from it.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, LongType, NullType, StringType, StructType
from typing_extensions import override

from pyspark_ckpt import writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore
from pyspark_ckpt.state_store.database import write_table_file
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.delta import pour_delta
from pyspark_ckpt.state_store.format.keys import EMPTY_ID, MARKER_KEY, Marker
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.writing import dry_run, write_state
from tests.labs import saved_query

SEEDS = range(3 * int(os.environ.get("CKPT_FUZZ", "1")))
STEPS = 4


def _struct(**fields: DataType) -> StructType:
    found = StructType()
    for name, kind in fields.items():
        found.add(name, kind)
    return found


def _describe(key: StructType, value: StructType, encoder: str = "NoPrefix", **more: Any) -> Descriptor:  # noqa: ANN401
    encoders = {
        "NoPrefix": {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"},
        "Prefix": {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": 1},
        "Range": {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [0]},
        "TimeFirst": {"keyStateEncoderType": "TimestampAsPrefixKeyStateEncoderSpec"},
        "TimeLast": {"keyStateEncoderType": "TimestampAsPostfixKeyStateEncoderSpec"},
    }
    return Descriptor(
        ordered=encoder in ("Range", "TimeFirst", "TimeLast"),
        key_schema=key.jsonValue(),
        value_schema=value.jsonValue(),
        key_encoder=encoders[encoder],
        **more,
    )


EXPIRES = "ttlExpirationMs"
LONG, TEXT = LongType(), StringType()
USER, COUNT, NOTHING = _struct(user=TEXT), _struct(count=LONG), _struct(__empty__=NullType())
ELEMENT, WORD = _struct(n=LONG, s=TEXT), _struct(word=TEXT)
LIVING = _struct(value=ELEMENT, ttlExpirationMs=LONG)
ENTRY, TIMER = _struct(key=USER, userKey=WORD), _struct(key=USER, expiryTimestampMs=LONG)
OLDER, NEWER = _struct(n=LONG), _struct(n=LONG, s=TEXT)


def _by_expiry(key: StructType) -> Descriptor:
    return _describe(_struct(expirationMs=LONG, key=key), NOTHING, "Range", internal=True)


PROCESSOR = {
    "plain": _describe(USER, ELEMENT, multiple_values=True),
    "$rowCounter_plain": _describe(USER, COUNT, internal=True),
    "living": _describe(USER, LIVING, multiple_values=True),
    "$ttl_living": _by_expiry(USER),
    "$min_living": _describe(USER, _struct(expirationMs=LONG), internal=True),
    "$count_living": _describe(USER, COUNT, internal=True),
    "evolved": _describe(USER, NEWER, multiple_values=True, value_schemas=[OLDER.jsonValue(), NEWER.jsonValue()]),
    "value": _describe(USER, LIVING),
    "$ttl_value": _by_expiry(USER),
    "words": _describe(ENTRY, LIVING, "Prefix"),
    "$ttl_words": _by_expiry(ENTRY),
    "$procTimers_keyToTimestamp": _describe(TIMER, NOTHING, "Prefix", internal=True),
    "$procTimers_timestampToKey": _describe(_struct(expiryTimestampMs=LONG, key=USER), NOTHING, "Range", internal=True),
}
FIELD = _struct(field0=TEXT)
VALUES = {"left-keyWithTsToValues": ELEMENT, "right-keyWithTsToValues": _struct(n=LONG, s=TEXT, matched=LONG)}
JOIN = {name: _describe(FIELD, value, "TimeLast", multiple_values=True) for name, value in VALUES.items()} | {
    # Spark 4.3 has a null for each value, and earlier ones had their number.
    "left-tsWithKey": _describe(FIELD, NOTHING, "TimeFirst", internal=True, multiple_values=True),
    "right-tsWithKey": _describe(FIELD, _struct(numValues=LONG), "TimeFirst", internal=True),
}
OPERATORS = {"transformWithStateExec": PROCESSOR, "symmetricHashJoin": JOIN}
WRITTEN = {
    "transformWithStateExec": ("plain", "living", "evolved", "value", "words", "$procTimers_keyToTimestamp"),
    "symmetricHashJoin": tuple(VALUES),
}

Rows = dict[str, list[Any]]
"""The values of a state by its keys, each as text."""


class _Empty(saved_query.Query):
    """A query whose states have no rows."""

    @override
    def _changes(self, number: int) -> saved_query.Changes:
        return {}

    @override
    def _commit(self, identity: Identity, changes: Mapping[Any, Any]) -> tuple[Identity, DeltaName, bytes]:
        before = self.metas[identity]
        after = before
        for name, descriptor in saved_query.STATES[0, "default"].items():
            after, _ = after.with_state(name, descriptor)
        after = after.commit(f"{self.random.getrandbits(128):032x}", {}, self.partitions)
        path = Path(self.location) / f"{identity.partition}.sst"
        write_table_file(path, [(MARKER_KEY, after.marker.encode())], saved_query.TUNING)
        content = io.BytesIO()
        pour_delta(content, after, [path], self.chains.get(identity, []))
        path.unlink(missing_ok=True)
        self.metas[identity] = after
        delta = DeltaName(after.marker, Marker(before.version, before.id or EMPTY_ID))
        return identity, delta, content.getvalue()


@dataclass
class _Program:
    """A query whose states are changed at random, and what they must have."""

    operator: str
    folder: Path
    draw: random.Random
    known: dict[str, Rows] = field(default_factory=dict)

    def key(self, name: str) -> dict[str, Any]:
        """Any key of a state."""
        draw = self.draw
        user = {"user": draw.choice([f"user {draw.randrange(12)}", "", None, "ünïcode" * draw.randrange(1, 4)])}
        if self.operator == "symmetricHashJoin":
            return {"field0": user["user"], "__event_time": draw.choice([0, -5, 1 << 50, draw.randrange(9)])}
        if name == "words":
            return {"key": user, "userKey": {"word": draw.choice(["a", "b", "", None])}}
        if name.startswith("$procTimers"):
            return {"key": user, "expiryTimestampMs": draw.choice([-7, 0, draw.randrange(1 << 45)])}
        return user

    def value(self, name: str) -> dict[str, Any]:
        """Any value of a state."""
        draw = self.draw
        if name.startswith("$procTimers"):
            return {"__empty__": None}
        value: dict[str, Any] = {
            "n": draw.choice([None, draw.randrange(-9, 9)]),
            "s": draw.choice([None, "", "x" * draw.randrange(40)]),
        }
        if name in ("living", "value", "words"):
            return {"value": value, "ttlExpirationMs": draw.randrange(1 << 44)}
        return {**value, "matched": draw.randrange(2)} if name.startswith("right") else value

    def rows(self, name: str) -> Rows:
        """Any rows of a state."""
        draw = self.draw
        found: Rows = {}
        for _ in range(draw.choice([0, 1, 5, 40])):
            count = draw.choice([1, 2, 9, draw.choice([3, 2000])]) if self.is_list(name) else 1
            found[repr(self.key(name))] = [self.value(name) for _ in range(count)]
        return found

    def is_list(self, name: str) -> bool:
        """Whether its keys have several values."""
        return OPERATORS[self.operator][name].multiple_values

    def put(self, name: str) -> writing.Change:
        """Put rows, in any order and form; places in lists need not follow one another."""
        draw, rows = self.draw, self.rows(name)
        self.known[name] = rows
        listed = []
        for key, values in rows.items():
            places = sorted(draw.sample(range(len(values) * 3), len(values)))
            listed += [
                {"key": eval(key), "value": value, **({"index": place} if self.is_list(name) else {})}  # noqa: S307 - its own text
                for place, value in zip(places, values, strict=True)
            ]
        draw.shuffle(listed)
        table = pa.Table.from_pylist(listed, self.schema(name))
        form = draw.choice(["table", "reader", "batches"])
        batches = table.to_batches(max_chunksize=draw.choice([1000, 7])) or [
            pa.RecordBatch.from_pylist([], schema=table.schema)
        ]
        if form == "reader":
            return writing.Put(0, name, pa.RecordBatchReader.from_batches(table.schema, batches))
        return writing.Put(0, name, table if form == "table" else batches)

    def schema(self, name: str) -> pa.Schema:
        """The columns of a state."""
        with open_state(self.folder, operator=0, state=name) as state:
            columns = [each for each in state.schema if each.name in ("key", "index", "value")]
        return pa.schema(columns)

    def transform(self, name: str) -> writing.Change:
        """Leave out some rows, and change or double others."""
        seed, is_list = self.draw.random(), self.is_list(name)

        def judge(key: Any, value: Any) -> int:  # noqa: ANN401
            """0: it goes, 1: it stays, 2: it is there twice."""
            return random.Random(f"{seed} {key} {value}").choice([0, 1, 1, 2 if is_list else 1])

        def change(rows: pa.Table) -> pa.Table:
            found = []
            for row in rows.to_pylist():
                place = {"index": 2 * row["index"]} if is_list else {}
                for more in range(judge(row["key"], row["value"])):
                    found.append({**row, **place})
                    if is_list:
                        found[-1]["index"] += more
            return pa.Table.from_pylist(found, rows.schema)

        self.known[name] = {
            key: kept
            for key, values in self.known.get(name, {}).items()
            if (kept := [value for value in values for _ in range(judge(eval(key), value))])  # noqa: S307
        }
        return writing.Transform(0, name, change)

    def step(self, target: Path) -> None:
        """Make one or two changes; look at all states."""
        names = self.draw.sample(WRITTEN[self.operator], self.draw.randrange(1, 3))
        made = [self.draw.choice([self.put, self.put, self.transform])(name) for name in names]
        if not any(isinstance(getattr(each, "rows", None), pa.RecordBatchReader) for each in made):
            told = dry_run(self.folder, made)
            after = {each.name: each.rows_after for each in told.states}
            assert after == {name: sum(map(len, self.known[name].values())) for name in names}
        write_state(self.folder, target, made)
        self.folder = target
        if self.draw.random() < 0.3:
            restore(target, target.with_name(f"{target.name}-restored"), parallelism=self.draw.randrange(1, 5))
            self.folder = target.with_name(f"{target.name}-restored")
        for name in OPERATORS[self.operator]:
            assert self.read(name) == self.expect(name), name

    def read(self, name: str) -> Rows:
        """What is stored."""
        found: Rows = {}
        with open_state(self.folder, operator=0, state=name) as state:
            table = state.to_arrow()
            assert state.count() == len(table)
            for row in table.to_pylist():
                values = found.setdefault(repr(row["key"]), [])
                assert row.get("index", 0) == len(values)
                values.append(row["value"])
        return found

    def expect(self, name: str) -> Rows:
        """What must be stored."""
        counters = "$rowCounter_", "$count_", "$min_", "$ttl_"
        if head := next((each for each in counters if name.startswith(each)), None):
            found: Rows = {}
            for key, values in self.known.get(name.removeprefix(head), {}).items():
                first = min(value.get("ttlExpirationMs", 0) for value in values)
                if head == "$ttl_":
                    found[repr({"expirationMs": first, "key": eval(key)})] = [{"__empty__": None}]  # noqa: S307
                else:
                    found[key] = [{"expirationMs": first} if head == "$min_" else {"count": len(values)}]
            return found
        if name.endswith("-tsWithKey"):
            leader = self.known.get(name.replace("tsWithKey", "keyWithTsToValues"), {})
            is_left = name.startswith("left")
            return {
                key: [{"__empty__": None}] * len(values) if is_left else [{"numValues": len(values)}]
                for key, values in leader.items()
            }
        if name == "$procTimers_timestampToKey":
            timers = [eval(key) for key in self.known.get("$procTimers_keyToTimestamp", {})]  # noqa: S307
            return {
                repr({"expiryTimestampMs": each["expiryTimestampMs"], "key": each["key"]}): [{"__empty__": None}]
                for each in timers
            }
        return self.known.get(name, {})


@pytest.fixture(params=OPERATORS)
def operator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an operator of a query that can be written, with little memory."""
    name: str = request.param
    monkeypatch.setattr(saved_query, "STATES", {(0, "default"): OPERATORS[name]})
    monkeypatch.setattr(saved_query, "NAMES", {0: name})
    return name


def _begin(operator: str, folder: Path, seed: int) -> _Program:
    _Empty(str(folder / "query"), 3, operators=(0,)).run()
    return _Program(operator, folder / "query", random.Random(seed))


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
def test_states_are_as_plain_lists_after_random_changes(
    seed: int, operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _begin(operator, tmp_path, seed)
    if seed % 2:
        monkeypatch.setattr("pyspark_ckpt.offline.writing.tasks.RUN_BYTES", 4000)
        monkeypatch.setattr("pyspark_ckpt.offline.writing.store_writing.RANGE_BYTES", 1 << 28)
        monkeypatch.setattr("pyspark_ckpt.offline.writing.native.followers.PORTION_BYTES", 500)
    for step in range(STEPS):
        program.step(tmp_path / f"step-{step}")


def _rows(*rows: tuple[int | None, int | None]) -> pa.Table:
    """Values of one key of the state ``living``, by their index and when they expire."""
    element = pa.struct([("n", pa.int64()), ("s", pa.string())])
    return pa.Table.from_pylist(
        [
            {"key": {"user": "u"}, "index": index, "value": {"value": {"n": 1, "s": "x"}, "ttlExpirationMs": expires}}
            for index, expires in rows
        ],
        pa.schema(
            [
                ("key", pa.struct([("user", pa.string())])),
                ("index", pa.int64()),
                ("value", pa.struct([("value", element), (EXPIRES, pa.int64())])),
            ]
        ),
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (_rows((0, 1)).drop_columns(["index"]), "has no column 'index'.*from 0"),
        (_rows((0, 1), (1, 1), (0, 2)), "two rows are given for .*'index': 0.*one row for each index of a key"),
        (_rows((0, 1), (0, 2)).to_batches(max_chunksize=1), "2 rows were given for 1 places"),
        (_rows((-1, 1)), "a row has the index -1"),
        (_rows((None, 1)), "a null in the column 'index'"),
        (_rows((0, None)), "a value has a null as its 'ttlExpirationMs'"),
    ],
)
def test_rows_of_lists_that_do_not_fit_are_refused(
    rows: Any,  # noqa: ANN401
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saved_query, "STATES", {(0, "default"): PROCESSOR})
    monkeypatch.setattr(saved_query, "NAMES", {0: "transformWithStateExec"})
    monkeypatch.setattr("pyspark_ckpt.offline.writing.tasks.RUN_BYTES", 1)
    program = _begin("transformWithStateExec", tmp_path, 0)
    with pytest.raises(InvalidInputError, match=said):
        write_state(program.folder, tmp_path / "target", [writing.Put(0, "living", rows)])
