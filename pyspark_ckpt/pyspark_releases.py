"""The differences among the releases of PySpark that this package runs on. Only this module asks which is installed.

It looks for what it needs, such as a class or a parameter, and compares release numbers only where Python cannot see
the difference. Calling a function here imports PySpark; importing the package does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_extra

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_TYPES = "pyspark.sql.types"
_CONVERSION = "pyspark.sql.conversion"
_FIRST_WITH_TYPE = {"VariantType": "4.0", "TimeType": "4.1"}
_FIRST_WITH_COLLATIONS = "4.0"
_FIRST_WITH_COMMIT_IDS = (4, 0)
_FIRST_WITH_COMMIT_IDS_FOR_ALL = (4, 1)
_FIRST_THAT_FINDS_EXTENSIONS = (4, 0)
_FIRST_IN_REAL_TIME = (4, 3)
_WITHOUT_CLASSES_OF_THE_JAR = ("4.0.0",)
"""Releases that lack classes which the jar of their minor release calls: 4.0.0 has no CollationAwareMurmur3Hash."""


def find_release() -> str:
    """Return the release of PySpark that is installed, such as "4.3.0"."""
    release: str = import_module("pyspark.version").__version__
    return release


def find_minor_release() -> str:
    """Return the minor release of PySpark that is installed, such as "4.3"."""
    return ".".join(find_release().split(".")[:2])


def find_jars_of_spark() -> Path:
    """Return the folder of the jars of Spark: that of ``SPARK_HOME``, or the one inside PySpark."""
    home = import_module("pyspark.find_spark_home")._find_spark_home()  # noqa: SLF001 - PySpark's own way
    return Path(home) / "jars"


def refuse_incomplete_release() -> None:
    """Raise InvalidInputError for a release that lacks classes of later patches of its minor release."""
    release = find_release()
    if release in _WITHOUT_CLASSES_OF_THE_JAR:
        raise InvalidInputError(
            f"PySpark {release} is installed, but lacks classes of Spark that this package calls.",
            hint=f"Install a later patch of Spark {find_minor_release()}.",
        )


def has_commit_ids_for_all() -> bool:
    """Whether every query of this release of Spark runs in checkpoint format 2.

    In Spark 4.0, a query with a limit or an aggregation over all rows fails in it.
    """
    return _find_number() >= _FIRST_WITH_COMMIT_IDS_FOR_ALL


def finds_extensions() -> bool:
    """Whether a session of PySpark finds the extensions of Spark in its jars, without ``spark.sql.extensions``."""
    return _find_number() >= _FIRST_THAT_FINDS_EXTENSIONS


def require_commit_ids(what: str) -> None:
    """Raise InvalidInputError unless this release of Spark has checkpoint format 2, with ids in its commit log."""
    if _find_number() < _FIRST_WITH_COMMIT_IDS:
        raise _refuse(what, "4.0")


def require_real_time() -> None:
    """Raise InvalidInputError unless operators can keep state in Spark's real-time mode."""
    if _find_number() < _FIRST_IN_REAL_TIME:
        raise _refuse("State in real-time mode (real_time=True)", "4.3")


def require_data_sources(what: str) -> None:
    """Raise InvalidInputError unless Spark reads sources written in Python, ProcessError if PySpark is missing."""
    require_extra("pyspark", what)
    if find_spec("pyspark.sql.datasource") is None:
        raise _refuse(what, "4.0")


def require_stateful_processors(what: str) -> None:
    """Raise InvalidInputError unless PySpark has StatefulProcessor, ProcessError if it is missing."""
    require_extra("pyspark", what)
    if find_spec("pyspark.sql.streaming.stateful_processor") is None:
        raise _refuse(what, "4.0")


def refuse_connect(frame: object, what: str) -> None:
    """Raise InvalidInputError for a Spark Connect DataFrame that is not one of ``pyspark.sql``."""
    if type(frame).__module__.startswith("pyspark.sql.connect."):
        raise _refuse(f"{what} in a Spark Connect client", "4.0")


def require_own_listeners(session: object, what: str) -> None:
    """Raise InvalidInputError for a session of a Spark Connect client whose listeners run in the server."""
    if type(session).__module__.startswith("pyspark.sql.connect."):
        streams = import_module("pyspark.sql.connect.streaming.query")
        if not hasattr(streams, "StreamingQueryListenerBus"):
            raise _refuse(f"{what} in a Spark Connect client", "4.0")


def find_types(*names: str) -> tuple[type[DataType], ...]:
    """Return those types of Spark that this release has."""
    types = import_module(_TYPES)
    return tuple(getattr(types, name) for name in names if hasattr(types, name))


def make_type(name: str, *parameters: int) -> DataType:
    """Return the type of Spark whose class is ``name``. Raises InvalidInputError if this release does not have it."""
    found = find_types(name)
    if not found:
        raise _refuse(name, _FIRST_WITH_TYPE[name])
    make: Any = found[0]
    made: DataType = make(*parameters)
    return made


def make_collated_string(collation: str) -> DataType:
    """Return the type of text with a collation. Raises InvalidInputError if this release has none."""
    (string,) = find_types("StringType")
    if not hasattr(string, "collation") and "collation" not in signature(string.__init__).parameters:
        raise _refuse(f"The collation {collation}", _FIRST_WITH_COLLATIONS)
    make: Any = string
    made: DataType = make(collation)
    return made


@cache
def find_binary_class() -> type[bytes | bytearray]:
    """Return the class in which this release passes binary values to functions: bytearray before Spark 4.1."""
    if find_spec(_CONVERSION):
        convert = import_module(_CONVERSION).ArrowTableToRowsConversion.convert
        if "binary_as_bytes" in signature(convert).parameters:
            return bytes
    return bytearray


def make_variant(value: bytes, metadata: bytes) -> Any:  # noqa: ANN401 - the class is not in all releases
    """Return a value of type VARIANT as PySpark shows it, with parts that can change."""
    return _variant_class()(bytearray(value), bytearray(metadata))


def to_series(rows: pa.Table | pa.RecordBatch, time_zone: str, *, prefers_integer_types: bool) -> list[pd.Series[Any]]:
    """Return the columns of rows as PySpark passes them to a function of applyInPandasWithState.

    ``prefers_integer_types``: has no effect before Spark 4.2, which introduced the setting.
    """
    converter = getattr(import_module(_CONVERSION), "ArrowBatchTransformer", None) if find_spec(_CONVERSION) else None
    if converter is not None:
        series: list[pd.Series[Any]] = converter.to_pandas(
            rows,
            timezone=time_zone,
            struct_in_pandas="dict",
            ndarray_as_list=False,
            prefer_int_ext_dtype=prefers_integer_types,
            df_for_struct=False,
        )
        return series
    show = _make_serializer(time_zone, checks_casts=False, columns_by_name=True, coerces_integers=False).arrow_to_pandas
    rest = range(len(rows.columns)) if "idx" in signature(show).parameters else None
    shown = map(show, rows.columns) if rest is None else map(show, rows.columns, rest)
    return [each.rename(name) for each, name in zip(shown, rows.schema.names, strict=True)]


def to_rows(
    frame: pd.DataFrame,
    output: StructType,
    arrow_output: pa.DataType,
    time_zone: str,
    *,
    checks_casts: bool,
    columns_by_name: bool,
    coerces_integers: bool,
) -> pa.RecordBatch:
    """Return a frame that such a function returned as rows of ``output``. ``arrow_output``: its Arrow type.

    ``coerces_integers``: whether integers become decimals. It has no effect before Spark 4.1.
    Instants may be in any time zone. Raises what PySpark raises.
    """
    import pyarrow as pa  # noqa: PLC0415 - see the docstring of the package

    converter = getattr(import_module(_CONVERSION), "PandasToArrowConversion", None) if find_spec(_CONVERSION) else None
    if converter is None:
        serializer = _make_serializer(
            time_zone,
            checks_casts=checks_casts,
            columns_by_name=columns_by_name,
            coerces_integers=coerces_integers,
        )
        batch = serializer._create_batch([(frame, arrow_output)])  # noqa: SLF001 - there is no public way
    else:
        types = import_module(_TYPES)
        batch = converter.convert(
            [frame],
            types.StructType([types.StructField("_0", output)]),
            timezone=time_zone,
            safecheck=checks_casts,
            arrow_cast=True,
            assign_cols_by_name=columns_by_name,
            int_to_decimal_coercion_enabled=coerces_integers,
        )
    return pa.RecordBatch.from_struct_array(batch.column(0))


def _make_serializer(time_zone: str, *, checks_casts: bool, columns_by_name: bool, coerces_integers: bool) -> Any:  # noqa: ANN401 - a class of PySpark
    """Return what PySpark 3.5 to 4.1 convert the frames of applyInPandasWithState with."""
    make: Callable[..., Any] = import_module("pyspark.sql.pandas.serializers").ApplyInPandasWithStateSerializer
    given = {
        "timezone": time_zone,
        "safecheck": checks_casts,
        "assign_cols_by_name": columns_by_name,
        "state_object_schema": None,
        "arrow_max_records_per_batch": 0,
        "prefers_large_var_types": False,
        "int_to_decimal_coercion_enabled": coerces_integers,
    }
    return make(**{name: given[name] for name in signature(make).parameters})


def _find_number() -> tuple[int, ...]:
    return tuple(map(int, find_minor_release().split(".")))


@cache
def _variant_class() -> Callable[[bytearray, bytearray], Any]:
    made: Callable[[bytearray, bytearray], Any] = import_module(_TYPES).VariantVal
    return made


def _refuse(what: str, first: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what} needs Spark {first} or newer, and PySpark {find_release()} is installed.",
        hint="Do without it, or move to a newer Spark.",
    )
