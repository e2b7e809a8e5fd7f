"""Rows of one key of a state, and the rows that differ between two versions of a state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from typing_extensions import override

from pyspark_ckpt.offline.descriptions.json_forms import Fields
from pyspark_ckpt.offline.reading.catalog import without_internal
from pyspark_ckpt.offline.reading.differences import StateDiff
from pyspark_ckpt.offline.reading.kept_folders import KeptFolders
from pyspark_ckpt.offline.reading.keys.json_values import from_json, json_values
from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.reading.sources import StoresSource, state_at
from pyspark_ckpt.offline.reading.stored_state import Selection, StoredState
from pyspark_ckpt.operators.types.type_names import spark_name
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.workplace import THREADS
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError
from pyspark_ckpt.state_store.format.meta import EMPTY_META, StoreMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.web.subjects import Facts, Subject

MAX_KEY_ROWS, MAX_KEY_BYTES = 200, 32 << 20
"""How much of a key is read: a hot one may have more than fits into memory."""
MAX_SHOWN = 2000
"""Characters of a value that are shown."""
MAX_DIFF_ROWS = 500
DIFF_S = 20.0
"""How long a search for differences may take. It does not interrupt the fetch of a partition."""


class KnownSource(StoresSource):
    """The stores of a version, with metadata that is already known and not read again."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        version: int,
        operators: Sequence[OperatorVersion],
        pool: ThreadPoolExecutor,
        kept: KeptFolders,
        left_out: Collection[Identity] = (),
    ) -> None:
        """See StoresSource. Stores in ``left_out`` appear without state."""
        super().__init__(checkpoint, version, pool, kept)
        self._known = {
            each.identity: each.meta for operator in operators for stores in operator.stores.values() for each in stores
        } | dict.fromkeys(left_out, EMPTY_META)

    @override
    def meta(self, identity: Identity) -> StoreMeta:
        known = self._known.get(identity)
        return super().meta(identity) if known is None else known


@contextmanager
def open_reader(
    facts: Facts,
    operators: Sequence[OperatorVersion],
    version: int,
    wanted: Selection,
    left_out: Collection[Identity] = (),
) -> Iterator[StateReader]:
    """Open a reader of states at the newest version, whose metadata is known. Raises CkptError."""
    if not facts.has_stores:
        with StateReader(facts.checkpoint, wanted) as reader:
            yield reader
        return
    with (
        ThreadPoolExecutor(THREADS, thread_name_prefix="look-up") as pool,
        closing(KeptFolders()) as kept,
        StateReader(
            facts.checkpoint,
            wanted,
            version,
            known=None,
            source=KnownSource(facts.checkpoint, version, operators, pool, kept, left_out),
        ) as reader,
    ):
        yield reader


def list_states(
    facts: Facts, operators: Sequence[OperatorVersion], version: int, damaged: Collection[Identity]
) -> list[Fields]:
    """Return the states of which keys can be looked up, with the columns of their keys, as ``damaged`` stores allow.

    Raises CkptError.
    """
    with open_reader(facts, operators, version, Selection(), damaged) as reader:
        return [_describe_state(number, each) for number, each in enumerate(without_internal(reader.states))]


def _describe_state(number: int, each: StoredState) -> Fields:
    """Return a state, or what is wrong with its types: other states can still be searched."""
    key: list[Fields] = []
    problem = None
    try:
        codec = each.codec()
        key = [
            {"column": field.name, "type": name_type(field.type), "is_optional": field not in codec.placing_fields}
            for field in codec.key_fields
        ]
    except CkptError as wrong:
        problem = wrong.message
    return {
        "number": number,
        "operator": each.operator.number,
        "store": each.store,
        "uid": each.uid,
        "state": each.name,
        "kind": each.kind,
        "rows": each.rows,
        "whose": each.whose,
        "key": key,
        "problem": problem,
    }


def name_type(kind: pa.DataType) -> str:
    """Return Spark's name of a type, or Arrow's if Spark has none for it."""
    try:
        return spark_name(kind)
    except (InvalidInputError, KeyError, TypeError):
        return str(kind)


def select(state: Fields) -> Selection:
    """Return the selection of exactly one state of ``list_states``."""
    return Selection(state["uid"], state["operator"], state["store"], state["state"])


def find_key(
    facts: Facts, operators: Sequence[OperatorVersion], version: int, state: Fields, given: Sequence[str | None]
) -> Fields:
    """Return the rows of a key whose columns are ``given`` as typed into a form; None is null.

    Columns that do not place a key, such as the index of a row of a join, may all be empty: this finds all rows of the
    others. Raises CkptError.
    """
    with open_reader(facts, operators, version, select(state)) as reader:
        codec = reader.state.codec()
        fields = codec.key_fields
        if len(given) != len(fields):
            raise InvalidInputError(f"{reader.state.whose} has keys of {len(fields)} columns, got {len(given)}.")
        typed = list(zip(given, fields, strict=True))
        if all(text == "" for text, field in typed if field not in codec.placing_fields):
            texts = {field.name: text for text, field in typed}
            typed = [(texts[field.name], field) for field in codec.placing_fields]
        key = [read_typed(text, field.type) for text, field in typed]
        found = reader.find(key, from_json, _is_enough)
        rows = found.rows.slice(0, MAX_KEY_ROWS)
        return {
            "key": list(given),
            "version": version,
            "columns": rows.schema.names,
            "rows": show_rows(rows.to_batches()),
            "is_all": found.is_all,
        }


def _is_enough(found: Sequence[pa.RecordBatch]) -> bool:
    return bool(
        sum(each.num_rows for each in found) > MAX_KEY_ROWS or sum(each.nbytes for each in found) >= MAX_KEY_BYTES
    )


def read_typed(text: str | None, kind: pa.DataType) -> Any:  # noqa: ANN401 - a value of JSON
    """Return the text of a form's field as a JSON value of the field's type. Raises InvalidInputError."""
    if text is None:
        return None
    read = next((each for matches, each in _TYPED if matches(kind)), str)
    try:
        return read(text)
    except (ValueError, InvalidOperation, RecursionError) as problem:
        raise InvalidInputError(f"{text[:100]!r} is not a value of type {name_type(kind)}.") from problem


def _read_boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_duration(kind))


_TYPED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]], ...] = (
    (_is_whole, int),
    (pa.types.is_floating, float),
    (pa.types.is_boolean, _read_boolean),
    (pa.types.is_decimal, lambda text: str(Decimal(text))),
    (pa.types.is_nested, lambda text: json.loads(text, parse_float=Decimal)),
)


def show_rows(batches: Sequence[pa.RecordBatch]) -> list[list[Fields]]:
    """Return rows as cells: the JSON of each value, cut if it is long."""
    rows = (row for batch in batches for row in zip(*map(json_values, batch.columns), strict=True))
    return [[_show(value) for value in row] for row in rows]


def _show(value: Any) -> Fields:  # noqa: ANN401 - a value of JSON
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None:
        return {"text": None, "characters": 0, "is_number": False}
    return {"text": text[:MAX_SHOWN], "characters": len(text), "is_number": is_number}


def compare(
    subjects: tuple[Subject, Subject], versions: tuple[int | None, int | None], wanted: Selection, limit: int
) -> Fields:
    """Return up to ``limit`` rows that differ between two versions of a state. Raises CkptError."""
    until_s = time.monotonic() + DIFF_S
    left, right = (
        StateReader(state_at(subject.location, subject.options), wanted, version)
        for subject, version in zip(subjects, versions, strict=True)
    )
    with StateDiff(left, right, lambda: time.monotonic() > until_s) as differences:
        rows: list[list[Fields]] = []
        batches = differences.batches()
        for batch in batches:
            rows += show_rows([batch.slice(0, limit - len(rows) + 1)])
            if len(rows) > limit:
                break
        batches.close()
        return {
            "columns": differences.schema.names,
            "rows": rows[:limit],
            "is_all": differences.is_all and len(rows) <= limit,
            "limit": limit,
            "version_a": left.version,
            "version_b": right.version,
        }


def choose_state(states: Sequence[Fields], given: Mapping[str, str]) -> Fields | None:
    """Return the state that a form names by its number, or a link by its operator, store and name.

    None if none is named. Raises InvalidInputError.
    """
    text = given.get("state", "")
    if not text:
        return _find_state(states, given) if states and "name" in given else None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) >= len(states):  # noqa: PLR2004
        raise InvalidInputError(f"There is no state number {text[:20]!r}: choose one from the list.")
    return states[int(text)]


def _find_state(states: Sequence[Fields], given: Mapping[str, str]) -> Fields:
    wanted = tuple(given.get(each, "") for each in ("operator", "store", "name"))
    for each in states:
        if (str(each["operator"]), each["store"], each["state"]) == wanted:
            return each
    raise InvalidInputError(
        f"There is no state {wanted[2][:100]!r} whose keys can be looked up: choose one from the list."
    )
