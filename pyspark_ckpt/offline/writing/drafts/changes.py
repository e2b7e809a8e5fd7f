"""Changes of state, for ``write_state``: which rows a state gets, and what happens to states and uids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from pyspark_ckpt.operators.declarations.states import Declared

    Rows: TypeAlias = pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch] | pd.DataFrame | DataFrame


@dataclass(frozen=True)
class Put:
    """Replaces all rows of a state of the operator ``uid``.

    ``state``: the name of an existing state, which keeps its types; or a declaration, such as ``ValueState("views",
    "long")`` or ``Count.views``, for a new state or new types.

    ``rows``: an Arrow table, reader or batches, a pandas frame, or a Spark frame that is not a stream. They have the
    columns that ``open_state`` shows: ``key``, a struct, or the columns of the key by their names; ``value``; ``index``
    of elements of lists; ``map_key`` of entries of maps; ``at`` and ``namespace`` of timers; ``written_at`` where rows
    have a time to live (left out: now or, in event time, with the first watermark; null: the row does not expire until
    it is written; the year 1970: in event time, with the first watermark). ``partition``, ``key_group``, ``hash``,
    ``expires_at``, ``at_ms`` and ``clock`` are allowed, and ignored.

    ``key`` (the columns of the key with their types, such as ``"user string"``) and ``max_parallelism`` are as in
    ``keyed``, and only for a new operator.

    A state of one of Spark's own operators: ``uid`` is the number of the operator, and ``store`` names its store in a
    join. Rows have a struct ``key``, a struct ``value`` and, if a key has a list of values, the ``index`` of each. The
    state keeps its types. What Spark derives from a variable or timers of ``transformWithState`` or from rows of a join
    in state format 4, such as counts and indexes by time, is rebuilt unless you put it as well. For joins in other
    formats, you put the counts.
    """

    uid: str | int
    state: str | Declared
    rows: Rows
    key: str | None = None
    max_parallelism: int | None = None
    store: str | None = None


@dataclass(frozen=True)
class Transform:
    """The rows of a state, changed by a function.

    ``function`` gets Arrow tables, with the columns that ``open_state`` shows, also after other changes, and returns
    tables with the same columns: fewer rows, more, or other ones. Each call gets some thousand rows of one
    partition, and the rows of one key may be split between two calls. ``declared``: the state with new types, if the
    function changes them. ``uid`` and ``store``: as in Put.

    The function is copied, with everything it uses, to tasks in other processes. Its changes to anything but the rows
    stay in a copy.
    """

    uid: str | int
    state: str
    function: Callable[[pa.Table], pa.Table]
    declared: Declared | None = None
    store: str | None = None


@dataclass(frozen=True)
class Drop:
    """Removes a state with all its rows; ``state`` None: all states of the uid."""

    uid: str
    state: str | None = None


@dataclass(frozen=True)
class Rename:
    """Renames a state; ``state`` None: the uid. The rows stay as they are."""

    uid: str
    to: str
    state: str | None = None


@dataclass(frozen=True)
class SetMaxParallelism:
    """Sets the number of key groups of the operator. The rows stay as they are."""

    uid: str
    max_parallelism: int


@dataclass(frozen=True)
class ReKey:
    """Gives the operator another key: other columns, or other types.

    ``key``: the new columns with their types, as ``keyed`` has them: ``"account bigint, country string"``. ``function``
    gets Arrow tables of every state that belongs to keys, like the function of ``Transform``, and returns them with the
    new key: a struct ``key``, or its columns by their names. The tables have one more column, ``former_key``, which
    must stay in the rows: it shows whether two keys become one, over all states together. That is refused: merge their
    rows first, and Put them.
    """

    uid: str
    key: str
    function: Callable[[pa.Table], pa.Table]


Change: TypeAlias = Put | Transform | Drop | Rename | SetMaxParallelism | ReKey


@dataclass(frozen=True)
class Migration:
    """Named changes, which are applied once.

    The savepoint records the name, and so do all checkpoints and savepoints made from it. ``write_state`` skips a
    migration that the source has had. So a program can keep the list of all its migrations, in their order, and apply
    it to any of its savepoints.
    """

    name: str
    changes: Sequence[Change]


def describe(change: Change) -> str:
    """Return what a change does, in a few words."""
    if isinstance(change, Put):
        name = change.state if isinstance(change.state, str) else getattr(change.state, "name", change.state)
        return f"put {change.uid}/{name}"
    if isinstance(change, Transform):
        return f"transform {change.uid}/{change.state}"
    if isinstance(change, SetMaxParallelism):
        return f"set max_parallelism of {change.uid} to {change.max_parallelism}"
    if isinstance(change, ReKey):
        return f"key {change.uid} by {change.key}"
    of = change.uid if change.state is None else f"{change.uid}/{change.state}"
    return f"drop {of}" if isinstance(change, Drop) else f"rename {of} to {change.to}"
