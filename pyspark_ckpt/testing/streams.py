"""``keyed`` and ``keyed_inputs`` as in a query, with columns in place of streaming frames: they make harnesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias

from pyspark_ckpt.operators.declarations.operator import BROADCAST_NAME
from pyspark_ckpt.operators.declarations.processors import check_input_name
from pyspark_ckpt.operators.frames import Columns, find_keys, find_names, read_groups, resolve_columns
from pyspark_ckpt.operators.keyed import KeyedStream
from pyspark_ckpt.operators.keyed_inputs import KeyedInputs, make_keyed_inputs
from pyspark_ckpt.operators.plan import WATERMARK, KeyedColumns, OperatorPlan, find_watermark
from pyspark_ckpt.operators.watermarks import read_idle_after_ms
from pyspark_ckpt.state_store.arguments import read_mapping
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_extra
from pyspark_ckpt.state_store.format.key_groups import MAX_PARALLELISM
from pyspark_ckpt.state_store.format.meta import check_uid
from pyspark_ckpt.state_store.options import PREFIX, parse, read_settings
from pyspark_ckpt.testing.delays import read_delay_ms
from pyspark_ckpt.testing.given_rows import GivenRows, RowsLike, read_rows
from pyspark_ckpt.testing.harness import Harness, Origin, Settings
from pyspark_ckpt.testing.seen_times import Watermark

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql.types import StructType

    from pyspark_ckpt.operators.declarations.operator import KeyedOperator
    from pyspark_ckpt.operators.plan import Processor

PathText: TypeAlias = "str | PathLike[str]"
WatermarkLike: TypeAlias = "tuple[str, str | timedelta]"
UID = "tested"
WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "false",
    WATERMARK_POLICY: "min",
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
class InputColumns:
    """One input of ``keyed_inputs``: its columns, as a StructType or Spark DDL, and the rest as for ``keyed``.

    ``idle_after``: as for ``with_watermark``; the input does not hold up the watermark while it has no rows.
    """

    columns: StructType | str
    by: str | Sequence[str]
    order_by: str | Sequence[str] = ()
    watermark: WatermarkLike | None = None
    idle_after: str | timedelta | None = None


@dataclass(frozen=True)
class BroadcastColumns:
    """The broadcast input of ``keyed`` and ``keyed_inputs``: its columns, and the order of its rows within a batch."""

    columns: StructType | str
    order_by: str | Sequence[str] = ()


@dataclass(frozen=True)
class Confs:
    """Confs of Spark that a test sets, and the defaults of those that operators read."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, conf: object, parallelism: object, who: str) -> Confs:
        """Return the confs of a harness. Raises InvalidInputError (an unknown option, a wrong value)."""
        partitions = read_groups(parallelism, who, "parallelism")
        by_name = read_mapping(conf, f"{who}: conf", "{'spark.sql.session.timeZone': 'UTC'}")
        given = {name: str(value) for name, value in by_name.items()}
        if PARTITIONS_CONF in given:
            raise InvalidInputError(
                f"{who}: {PARTITIONS_CONF} is the parallelism of the harness.", hint="Give it as parallelism=."
            )
        parse({name: value for name, value in given.items() if name.startswith(PREFIX)})
        confs = cls({**given, PARTITIONS_CONF: str(partitions)})
        if (policy := str(confs.get(WATERMARK_POLICY))).lower() not in {"min", "max"}:
            raise InvalidInputError(f"{who}: {WATERMARK_POLICY} must be 'min' or 'max', got {policy!r}.")
        return confs

    def get(self, key: str, default: str | None = _NEEDED) -> str | None:
        """Return a conf. Raises KeyError if it has no default."""
        found = {**_DEFAULTS, **self.given}.get(key, default)
        if found == _NEEDED:
            raise KeyError(key)
        return found

    def is_on(self, key: str) -> bool:
        """Whether a conf is true."""
        return str(self.get(key)).lower() == "true"

    def settings(self) -> Settings:
        """Return the settings that a harness itself needs."""
        options = read_settings(lambda name: self.get(name, None))
        return Settings(options, takes_latest_watermark=str(self.get(WATERMARK_POLICY)).lower() == "max")


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
        settings = self.conf.settings()
        harness = Harness(operator, processor, self.watermarks, settings, self.origin, mode.lower(), given)
        self.note(harness)
        return harness


class Streams:
    """Makes keyed streams whose operators are harnesses."""

    def __init__(self, note: Callable[[Harness], object] = lambda _: None) -> None:
        """Call ``note`` with each harness that is made."""
        self._note = note

    def keyed(
        self,
        columns: StructType | str,
        by: str | Sequence[str],
        *,
        uid: str = UID,
        order_by: str | Sequence[str] = (),
        max_parallelism: int = MAX_PARALLELISM,
        watermark: WatermarkLike | None = None,
        broadcast: BroadcastColumns | None = None,
        parallelism: int = 1,
        conf: Mapping[str, str] | None = None,
        folder: PathText | None = None,
        savepoint: PathText | None = None,
    ) -> KeyedStream[Harness]:
        """Key rows by columns, as ``pyspark_ckpt.keyed`` does; ``process`` of the result returns a Harness.

        ``columns``: those of the stream, as a StructType or Spark DDL. ``by``, ``uid``, ``order_by`` and
        ``max_parallelism`` are those of ``pyspark_ckpt.keyed``. ``watermark``: the column of the event time and the
        delay, as for withWatermark: ``("at", "10 minutes")``. ``broadcast``: a BroadcastColumns of this module; give
        its rows to ``run`` as ``broadcast``. ``parallelism``: the number of partitions. ``conf``: confs of Spark by
        name, such as options of this package, or spark.sql.session.timeZone, which is UTC by default. ``folder``: keeps
        the checkpoint, which is temporary by default; a harness in the folder of an earlier one continues it.
        ``savepoint``: the harness begins from it, at its own ``parallelism``.

        Raises InvalidInputError.
        """
        who = f"keyed(uid={uid!r})"
        check_uid(uid, who)
        confs = Confs.of(conf, parallelism, who)
        given, mark = _read_input("", InputColumns(columns, by, order_by, watermark), confs, who)
        host = HarnessHost(confs, (mark,), Origin(folder, savepoint), self._note)
        rules = _read_broadcast(broadcast, confs, who)
        return KeyedStream(OperatorPlan((given,), uid, read_groups(max_parallelism, who), who, host, broadcast=rules))

    def keyed_inputs(
        self,
        *,
        uid: str = UID,
        merge: bool = False,
        max_parallelism: int = MAX_PARALLELISM,
        broadcast: BroadcastColumns | None = None,
        parallelism: int = 1,
        conf: Mapping[str, str] | None = None,
        folder: PathText | None = None,
        savepoint: PathText | None = None,
        **inputs: InputColumns,
    ) -> KeyedInputs[Harness]:
        """Key several inputs alike, as ``pyspark_ckpt.keyed_inputs`` does; ``process`` of the result returns a Harness.

        ``inputs``: InputColumns of this module by name. The other arguments are those of ``keyed`` here and of
        ``pyspark_ckpt.keyed_inputs``. Raises InvalidInputError.
        """
        who = f"keyed_inputs(uid={uid!r})"
        check_uid(uid, who)
        confs = Confs.of(conf, parallelism, who)
        for name, each in inputs.items():
            check_input_name(name, who)
            if not isinstance(each, InputColumns):
                raise InvalidInputError(
                    f"{who}: input {name!r} is {repr(each)[:200]}, of type {type(each).__name__}.",
                    hint=f"Give its columns and its keys: {name}=testing.InputColumns('user string', by='user').",
                )
        read = [_read_input(name, each, confs, f"{who}: input {name!r}") for name, each in inputs.items()]
        host = HarnessHost(confs, tuple(mark for _, mark in read), Origin(folder, savepoint), self._note)
        return make_keyed_inputs(
            [given for given, _ in read],
            uid,
            host,
            merge=merge,
            max_parallelism=max_parallelism,
            broadcast=_read_broadcast(broadcast, confs, who),
        )


_STREAMS = Streams()
keyed, keyed_inputs = _STREAMS.keyed, _STREAMS.keyed_inputs


def _read_input(name: str, given: InputColumns, confs: Confs, who: str) -> tuple[KeyedColumns, Watermark | None]:
    require_extra("pyspark", who)
    columns = Columns(resolve_columns(given.columns, f"{who}: the columns"), confs.is_on("spark.sql.caseSensitive"))
    mark = _find_mark(columns) if given.watermark is None else _mark(columns, given.watermark, who)
    if given.idle_after is not None:
        if mark is None:
            raise InvalidInputError(
                f"{who}: there is an idle_after, but no watermark.", hint="Give one: watermark=('at', '10 minutes')."
            )
        mark = replace(mark, idle_after_ms=read_idle_after_ms(given.idle_after, who))
    by = find_keys(columns, given.by, who)
    return KeyedColumns(name, columns.schema, by, find_names(columns, given.order_by, who, "to order by")), mark


def _read_broadcast(given: object, confs: Confs, who: str) -> KeyedColumns | None:
    who = f"{who}: the broadcast input"
    if given is None:
        return None
    if not isinstance(given, BroadcastColumns):
        raise InvalidInputError(
            f"{who} is {repr(given)[:200]}, of type {type(given).__name__}.",
            hint="Give testing.BroadcastColumns('<columns>', order_by='...').",
        )
    columns = Columns(resolve_columns(given.columns, f"{who}: the columns"), confs.is_on("spark.sql.caseSensitive"))
    return KeyedColumns(BROADCAST_NAME, columns.schema, (), find_names(columns, given.order_by, who, "to order by"))


def _find_mark(columns: Columns) -> Watermark | None:
    """Return the watermark that the schema of a Spark frame has."""
    field = find_watermark(columns.schema)
    return None if field is None else Watermark(field.name, int(field.metadata[WATERMARK]))


def _mark(columns: Columns, given: object, who: str) -> Watermark:
    """Mark the column of the event time, as withWatermark does. Raises InvalidInputError."""
    from pyspark.sql.types import TimestampType  # noqa: PLC0415 - see the docstring of the package

    if not isinstance(given, tuple) or len(given) != 2:  # noqa: PLR2004 - a pair
        raise InvalidInputError(f"{who}: the watermark must be a column and a delay, got {given!r}.")
    (name,) = find_names(columns, given[0], who, "with the event time")
    column = columns.schema[name]
    if not isinstance(column.dataType, TimestampType):
        raise InvalidInputError(
            f"{who}: the event time {name!r} is of type {column.dataType.simpleString()}; Spark takes only timestamps "
            "with the session's time zone.",
            hint="Give the column the type timestamp.",
        )
    for other in columns.schema:
        other.metadata.pop(WATERMARK, None)
    watermark = Watermark(name, read_delay_ms(given[1], f"{who}: the delay of the watermark"))
    column.metadata = {**column.metadata, WATERMARK: watermark.delay_ms}
    return watermark
