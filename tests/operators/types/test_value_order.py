"""The least and the greatest of values are those of Spark's order, for NaN, structs and arrays, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pyspark_ckpt.operators import ReducingState
from pyspark_ckpt.operators.types.value_types import resolve_type
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.program_lab import ProgramLab
from tests.labs.session_lab import keys_of
from tests.operators.types.typed_calls import NAN, NESTED, TYPES


@pytest.mark.parametrize("kind", ["double", "float"])
@pytest.mark.parametrize("how", ["min", "max"])
def test_nan_is_the_greatest_in_whatever_order_form_and_batches(kind: str, how: Any, lab: ProgramLab) -> None:  # noqa: ANN401
    rng = np.random.default_rng(7)
    program = [ReducingState("it", TYPES[kind], how)]
    pool = [NAN, -NAN, 0.0, -0.0, 1.5, -2.5, float("inf"), float("-inf")]
    users = [f"u{n}" for n in range(40)]
    given = {user: [pool[n] for n in rng.integers(0, len(pool), rng.integers(1, 7))] for user in users}
    given |= {"only NaN": [NAN], "zeros": [0.0, -0.0], "ones": [-0.0, 0.0], "last": [NAN, 1.0], "first": [1.0, NAN]}

    def expected(values: list[float]) -> float:
        in_order = sorted(values, key=lambda value: (value != value, value, np.copysign(1, value)))  # noqa: PLR0124
        return in_order[0] if how == "min" else in_order[-1]

    def alike(one: float, other: float) -> bool:
        return (one != one and other != other) or (one, np.copysign(1, one)) == (other, np.copysign(1, other))  # noqa: PLR0124

    def one_by_one(bound: Any) -> None:  # noqa: ANN401
        for user, values in given.items():
            for value in values:
                bound.at(f"one {user}")["it"].add(value)
            assert alike(bound["it"].get(), expected(values)), (values, bound["it"].get())

    def at_once(part: int) -> Callable[[Any], None]:
        def use(bound: Any) -> None:  # noqa: ANN401
            keys = keys_of(list(given))
            names = keys.column("user").to_pylist()
            rows = [(at, value) for at, name in enumerate(names) for value in given[name][part::2]]
            index, values = zip(*rows, strict=True)
            bound["it"].add_rows(keys, np.array(index), pa.array(values, resolve_type(TYPES[kind], "it").arrow))
            if part:
                for name, found in zip(names, bound["it"].get_values(keys).to_pylist(), strict=True):
                    assert alike(found, expected(given[name])), (given[name], found)

        return use

    lab.run(program, one_by_one)
    lab.run(program, at_once(0), many_keys=True)
    lab.run(program, at_once(1), many_keys=True)


def test_structs_and_arrays_are_reduced_in_sparks_order(lab: ProgramLab) -> None:
    pair = spark.StructType([spark.StructField("f", spark.DoubleType()), spark.StructField("t", spark.StringType())])
    program = [
        ReducingState("least", pair, "min"),
        ReducingState("most", pair, "max"),
        ReducingState("long", spark.ArrayType(spark.DoubleType()), "max"),
    ]

    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")
        for given in ((NAN, "a"), (1.0, None), {"f": 1.0, "t": "b"}, (None, "z")):
            bound["least"].add(given)
            bound["most"].add(given)
        for elements in ([1.0], [1.0, None], [NAN], [float("inf"), 5.0]):
            bound["long"].add(elements)
        assert bound["least"].get() == (None, "z")
        assert np.isnan(bound["most"].get().f)
        assert np.isnan(bound["long"].get()).tolist() == [True]

    lab.look(program, use)
    with pytest.raises(InvalidInputError, match=r"'it' keeps the min of values of type map<.*>, which have no order"):
        lab.look([ReducingState("m", NESTED["map"][0], "min")], use)


@pytest.mark.parametrize("value", [2.5, "3", True, None, NAN])
def test_a_value_that_is_none_of_the_type_is_refused_also_where_it_would_lose(value: Any, lab: ProgramLab) -> None:  # noqa: ANN401
    def use(bound: Any) -> None:  # noqa: ANN401
        bound.at("a")["most"].add(5)
        if value is None:
            bound["most"].add(value)
        else:
            with pytest.raises(InvalidInputError, match="State 'most' of operator 'it': its value is of type int64"):
                bound["most"].add(value)
        assert bound["most"].get() == 5

    lab.look([ReducingState("most", spark.LongType(), "max")], use)
