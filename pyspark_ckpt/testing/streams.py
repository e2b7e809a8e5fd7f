"""``keyed`` and ``connect`` as in a query, with columns in place of streaming frames: they make harnesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias

from pyspark_ckpt.operators.connect import ConnectedStreams, make_connected
from pyspark_ckpt.operators.declarations.durations import milliseconds
from pyspark_ckpt.operators.declarations.processors import check_input_name
from pyspark_ckpt.operators.frames import Columns, find_keys, find_names, read_groups, resolve_columns
from pyspark_ckpt.operators.keyed import KeyedStream
from pyspark_ckpt.operators.plan import WATERMARK, KeyedColumns, OperatorPlan
from pyspark_ckpt.state_store.checkpoints.query_log import PARTITIONS_CONF
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import check_uid
from pyspark_ckpt.state_store.options import read_settings
from pyspark_ckpt.testing.given_rows import GivenRows, RowsLike, read_rows
from pyspark_ckpt.testing.harness import Harness, Origin, Watermark

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql.types import StructType

    from pyspark_ckpt.operators.declarations.operator import KeyedOperator
    from pyspark_ckpt.operators.plan import Processor

PathLikeText: TypeAlias = "str | PathLike[str]"
WatermarkLike: TypeAlias = "tuple[str, str | timedelta]"
UID = "tested"
_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "false",
}
_NEEDED = "_needed"


@dataclass(frozen=True)
class Rows:
    """Rows with their columns, such as an initial state: ``Rows("user string, total bigint", [("ada", 5)])``."""

    columns: StructType | str
    rows: RowsLike

    @property
    def schema(self) -> StructType:
        """The columns."""
        return resolve_columns(self.columns, "The rows")


@dataclass(frozen=True)
class KeyedInput:
    """One input of ``connect``: its columns, as a StructType or Spark DDL, and the rest as for ``keyed``."""

    columns: StructType | str
    by: str | Sequence[str]
    order_by: str | Sequence[str] = ()
    watermark: WatermarkLike | None = None


@dataclass(frozen=True)
class Confs:
    """Confs of Spark that a test sets, and the defaults of those that operators read."""

    given: Mapping[str, str]

    def get(self, key: str, default: str | None = _NEEDED) -> str | None:
        """Return a conf. Raises KeyError if it has no default."""
        found = {**_DEFAULTS, **self.given}.get(key, default)
        if found == _NEEDED:
            raise KeyError(key)
        return found


@dataclass(frozen=True)
class HarnessHost:
    """Makes harnesses. See ``operators.declarations.host.Host``."""

    conf: Confs
    watermarks: tuple[Watermark | None, ...]
    origin: Origin
    note: Callable[[Harness], object]

    def read_initial(self, given: object, by: Sequence[str], who: str) -> Rows:
        """Return an initial state with its keys named as in the input. Raises InvalidInputError."""
        if not isinstance(given, Rows):
            raise InvalidInputError(
                f"{who} is {repr(given)[:200]}, of type {type(given).__name__}.",
                hint="Give testing.Rows('<columns>', [...]).",
            )
        schema = given.schema
        names = find_names(Columns(schema), by, who, "to key by")
        renamed = dict(zip(names, by, strict=True))
        for each in schema.fields:
            each.name = renamed.get(each.name, each.name)
        return Rows(type(schema)(schema.fields), given.rows)

    def start(
        self,
        operator: KeyedOperator,
        processor: Processor,
        output: StructType,  # noqa: ARG002 - the operator has it in Arrow's form
        mode: str,
        initial: Rows | None,
    ) -> Harness:
        """Return a harness of the operator."""
        given: GivenRows | None = None
        if initial is not None and operator.initial is not None:
            given = read_rows(initial.rows, operator.initial, operator.by, None, "The initial state")
        settings = read_settings(lambda name: self.conf.get(name, None))
        harness = Harness(operator, processor, self.watermarks, settings, self.origin, mode.lower(), given)
        self.note(harness)
        return harness


def keyed(
    columns: StructType | str,
    by: str | Sequence[str],
    *,
    uid: str = UID,
    order_by: str | Sequence[str] = (),
    max_parallelism: int = MAX_PARALLELISM,
    watermark: WatermarkLike | None = None,
    parallelism: int = 1,
    conf: Mapping[str, str] | None = None,
    folder: PathLikeText | None = None,
    savepoint: PathLikeText | None = None,
    note: Callable[[Harness], object] = lambda _: None,
) -> KeyedStream[Harness]:
    """Key rows by columns, as ``pyspark_ckpt.keyed`` does; ``process`` of the result returns a Harness.

    ``columns``: those of the stream, as a StructType or Spark DDL. ``by``, ``uid``, ``order_by`` and
    ``max_parallelism`` are those of ``pyspark_ckpt.keyed``. ``watermark``: the column of the event time and the delay,
    as of withWatermark: ``("at", "10 minutes")``. ``parallelism``: the number of partitions. ``conf``: confs of Spark
    by name, such as options of this package, or spark.sql.session.timeZone, which is UTC. ``folder``: where the
    checkpoint is and stays; by default it is temporary. A harness in the folder of an earlier one continues it.
    ``savepoint``: a savepoint that the harness begins from, at its own ``parallelism``. ``note`` is called with each
    harness that is made.

    Raises InvalidInputError.
    """
    who = f"keyed(uid={uid!r})"
    check_uid(uid, who)
    given, mark = _read_input("", KeyedInput(columns, by, order_by, watermark), conf or {}, who)
    host = _make_host((mark,), parallelism, conf or {}, Origin(folder, savepoint), note, who)
    return KeyedStream(OperatorPlan((given,), uid, read_groups(max_parallelism, who), who, host))


def connect(
    *,
    uid: str = UID,
    merge: bool = False,
    max_parallelism: int = MAX_PARALLELISM,
    parallelism: int = 1,
    conf: Mapping[str, str] | None = None,
    folder: PathLikeText | None = None,
    savepoint: PathLikeText | None = None,
    note: Callable[[Harness], object] = lambda _: None,
    **inputs: KeyedInput,
) -> ConnectedStreams[Harness]:
    """Connect inputs by their keys, as ``pyspark_ckpt.connect`` does; ``process`` of the result returns a Harness.

    ``inputs``: a KeyedInput of this module by name. The other arguments are those of ``keyed`` here and of
    ``pyspark_ckpt.connect``. Raises InvalidInputError.
    """
    who = f"connect(uid={uid!r})"
    check_uid(uid, who)
    for name, each in inputs.items():
        check_input_name(name, who)
        if not isinstance(each, KeyedInput):
            raise InvalidInputError(
                f"{who}: input {name!r} is {repr(each)[:200]}, of type {type(each).__name__}.",
                hint=f"Give its columns and its keys: {name}=testing.KeyedInput('user string, n int', by='user').",
            )
    read = [_read_input(name, each, conf or {}, f"{who}: input {name!r}") for name, each in inputs.items()]
    marks = tuple(mark for _, mark in read)
    host = _make_host(marks, parallelism, conf or {}, Origin(folder, savepoint), note, who)
    return make_connected([given for given, _ in read], uid, host, merge=merge, max_parallelism=max_parallelism)


def _make_host(
    watermarks: tuple[Watermark | None, ...],
    parallelism: object,
    conf: Mapping[str, str],
    origin: Origin,
    note: Callable[[Harness], object],
    who: str,
) -> HarnessHost:
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or not 1 <= parallelism <= MAX_PARALLELISM:
        raise InvalidInputError(f"{who}: parallelism must be an integer, 1 to {MAX_PARALLELISM}, got {parallelism!r}.")
    confs = Confs({**conf, PARTITIONS_CONF: str(parallelism)})
    return HarnessHost(confs, watermarks, origin, note)


def _read_input(
    name: str, given: KeyedInput, conf: Mapping[str, str], who: str
) -> tuple[KeyedColumns, Watermark | None]:
    require_extra("pyspark", who)
    schema = resolve_columns(given.columns, f"{who}: the columns")
    columns = Columns(schema, Confs(conf).get("spark.sql.caseSensitive") == "true")
    mark = _mark(columns, given.watermark, who)
    by = find_keys(columns, given.by, who)
    return KeyedColumns(name, schema, by, find_names(columns, given.order_by, who, "to order by")), mark


def _mark(columns: Columns, given: object, who: str) -> Watermark | None:
    """Mark the column of the event time, as withWatermark does. Raises InvalidInputError."""
    from pyspark.sql.types import TimestampNTZType, TimestampType  # noqa: PLC0415 - see the docstring of the package

    if given is None:
        return None
    if not isinstance(given, tuple) or len(given) != 2:  # noqa: PLR2004 - a pair
        raise InvalidInputError(f"{who}: the watermark must be a column and a delay, got {given!r}.")
    (name,) = find_names(columns, given[0], who, "with the event time")
    column = columns.schema[name]
    if not isinstance(column.dataType, (TimestampType, TimestampNTZType)):
        raise InvalidInputError(
            f"{who}: the event time {name!r} is of type {column.dataType.simpleString()}, not a timestamp."
        )
    watermark = Watermark(name, milliseconds(given[1]))
    column.metadata = {**column.metadata, WATERMARK: watermark.delay_ms}
    return watermark
