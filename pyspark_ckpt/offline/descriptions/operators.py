"""How operators, types, lineages and what was verified are named on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.operators.types.type_names import arrow_type_named, spark_name
from pyspark_ckpt.state_store.checkpoints.verification import Verified
from pyspark_ckpt.state_store.display import count_text, size_text
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.meta import StoreMeta

OF_OURS = "applyInPandasWithState"
"""Spark's name of the operator in which all operators with states of this package run."""
SHORT_ID = 8
"""How many characters of an id are shown in a table."""
_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Names in Spark's DDL of types that have another name in Spark's JSON."""


@dataclass(frozen=True)
class FilesRead:
    """Files that were read, and how many rows they have. Those of sources and about operators are counted apart."""

    files: int = 0
    bytes_read: int = 0
    rows: int = 0
    of_sources: int = 0
    of_operators: int = 0


def name_operator(name: str, uids: Iterable[str], *, is_keyed: bool) -> str:
    """Return an operator's name: Spark's, or the kind and the uids of one with states of this package."""
    of_ours = ", ".join(sorted(set(uids)))
    return f"{'keyed' if is_keyed else 'with_states'} {of_ours}" if of_ours else name


def name_by_metas(name: str, metas: Iterable[StoreMeta]) -> str:
    """Return an operator's name by the metadata of its stores."""
    states = [state for meta in metas for state in meta.states]
    uids = {state.uid for state in states if state.uid is not None}
    return name_operator(name, uids, is_keyed=any("max_parallelism" in state.descriptor.encoder for state in states))


def type_text(schema: Any) -> str:  # noqa: ANN401 - JSON
    """Return the columns of a row, from Spark's JSON or that of a keyed state, which keeps all its former types."""
    if not isinstance(schema, dict):
        return "" if schema is None else _type(schema)
    if isinstance(schema.get("fields"), list):
        return _columns(schema["fields"])
    return ", ".join(f"{name} {_type(kind)}" for name, kind in schema.items())


def key_text(schema: Mapping[str, str] | None) -> str:
    """Return the key columns of a keyed state, which are stored with Arrow's names of types; nothing without any."""
    if schema is None:
        return ""
    return ", ".join(f"{name} {spark_name(arrow_type_named(kind))}" for name, kind in schema.items())


def _type(schema: Any) -> str:  # noqa: ANN401 - JSON
    if not isinstance(schema, dict):
        return _NAMES.get(str(schema), str(schema))
    if isinstance(schema.get("schemas"), list):
        return _type(schema["schemas"][schema["current"] - 1])
    kind = schema.get("type")
    if kind == "struct":
        return f"struct<{_columns(schema['fields'])}>"
    if kind == "array":
        return f"array<{_type(schema['elementType'])}>"
    if kind == "map":
        return f"map<{_type(schema['keyType'])}, {_type(schema['valueType'])}>"
    return _type(schema.get("sqlType", kind))


def _columns(fields: Iterable[dict[str, Any]]) -> str:
    return ", ".join(f"{each['name']} {_type(each['type'])}" for each in fields)


def name_commit(commit: Marker) -> str:
    """Return a commit as text, with the begin of its id."""
    return f"{commit.version} ({commit.id[:SHORT_ID]})"


def name_base(base: Marker) -> str:
    """Return what a restore begins with, see ``name_commit``."""
    return "nothing" if base == EMPTY else f"snapshot {name_commit(base)}"


def name_deltas(deltas: Sequence[Marker]) -> str:
    """Return what a restore adds: the deltas of each version, of which many are only counted."""
    if len(deltas) <= 2:  # noqa: PLR2004 - no more than fit into a line
        return ", ".join(map(name_commit, deltas)) or "none"
    return f"{name_commit(deltas[0])} to {name_commit(deltas[-1])}: {count_text(len(deltas), 'delta')}"


def describe_reading(stores: Sequence[Verified], query: FilesRead, rows: FilesRead | None = None) -> str:
    """Return how much was read of the ``stores``, of the files of the ``query``, and of files of ``rows``."""
    saved = rows or FilesRead()
    counted = (
        (sum(each.snapshots for each in stores), "snapshot"),
        (sum(each.deltas for each in stores), "delta"),
        (sum(each.table_files for each in stores), "table file"),
        (saved.files, "file of rows", "files of rows"),
        (query.files, "file of the query", "files of the query"),
        (query.of_sources, "file of its sources", "files of its sources"),
        (query.of_operators, "file about operators", "files about operators"),
    )
    size = sum(each.bytes_read for each in stores) + saved.bytes_read + query.bytes_read
    of = "" if rows else f"{count_text(len(stores), 'store')}, "
    total = count_text(sum(each.rows for each in stores) + saved.rows, "row")
    return f"{of}{total}; {', '.join([*(count_text(*each) for each in counted if each[0]), size_text(size)])} read"
