"""What a user's own code raises says of which operator, key, partition and batch it was, and stays what it is."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ckpt.operators import Context, KeyedProcessor, VectorContext, VectorProcessor
from pyspark_ckpt.operators.declarations.operator import Input, KeyedOperator
from pyspark_ckpt.operators.declarations.processors import name_method
from pyspark_ckpt.operators.declarations.timers import Timer
from pyspark_ckpt.operators.encoding.distinct_keys import Groups, Keys
from pyspark_ckpt.operators.encoding.suffixes import Suffixes
from pyspark_ckpt.operators.rows.base import Position
from pyspark_ckpt.operators.task.firing import Due
from pyspark_ckpt.operators.task.processor_calls import ProcessorCalls
from pyspark_ckpt.operators.task.user_errors import CallError, ProcessorError, locate_errors, show
from pyspark_ckpt.state_store.errors import InvalidInputError

ROWS = pa.schema([("user", pa.string()), ("n", pa.int64())])
OUTPUT = pa.schema([("n", pa.int64())])
WHERE = Context(batch_id=17, partition=3, processing_time_ms=0, watermark_ms=-1)
USERS = ["anna", "bert", "carl"]


class OddError(Exception):
    """One of the user's own, whose arguments are its own as well."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)

    def __str__(self) -> str:
        raise RuntimeError("it cannot even be shown")


def divided(ctx: Context, rows: Sequence[Any]) -> Iterator[tuple[int]]:
    for row in rows:
        yield (ctx.batch_id // row.n,)


class Lazy(KeyedProcessor):
    """Raises while its rows are taken."""

    def process(self, ctx: Context, _key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]]:  # noqa: ANN401
        return divided(ctx, rows)

    def on_timer(self, _ctx: Context, key: Any, timer: Timer) -> None:  # noqa: ANN401
        raise LookupError(f"{timer.name} of {key.user}")


class Eager(KeyedProcessor):
    """Raises when it is called."""

    def process(self, ctx: Context, _key: Any, rows: Sequence[Any]) -> Iterable[Sequence[Any]]:  # noqa: ANN401
        return list(divided(ctx, rows))


class AtOnce(VectorProcessor):
    """Raises for all keys."""

    def process_batch(self, _ctx: VectorContext, batch: pa.Table) -> pa.Table | None:
        raise KeyError(batch.num_rows)


def work(processor: KeyedProcessor | VectorProcessor) -> ProcessorCalls:
    operator = KeyedOperator("visits", (Input("", ("user",), ROWS),), OUTPUT, (), 1, 1, "", False, 1 << 20)
    return ProcessorCalls(operator, processor, WHERE, Position())


def processed(processor: KeyedProcessor | VectorProcessor, numbers: Sequence[int]) -> list[int]:
    suffixes = Suffixes([user.encode() for user in USERS])
    keys = Keys(pa.table({"user": USERS}), suffixes)
    rows = pa.table([USERS, list(numbers)], schema=ROWS)
    method = name_method(processor, "in time")
    places = np.arange(len(USERS))
    batches = work(processor).process(Groups(keys, places, places), rows, method)
    return [n for batch in batches for n in batch["n"].to_pylist()]


@pytest.mark.parametrize("kind", [Lazy, Eager])
@pytest.mark.parametrize("failing", range(len(USERS)))
def test_an_error_names_operator_key_partition_and_batch(kind: type[KeyedProcessor], failing: int) -> None:
    assert processed(kind(), [1, 17, 2]) == [17, 1, 8]
    with pytest.raises(ProcessorError) as caught:
        processed(kind(), [int(number != failing) for number in range(len(USERS))])
    text = str(caught.value)
    assert text.startswith(
        f"{kind.__name__}.process() of keyed operator 'visits' failed for key (user={USERS[failing]!r}), partition 3, "
        "batch 17: ZeroDivisionError: "
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.hint in text


def test_an_error_of_a_timer_names_its_key() -> None:
    processor, due = Lazy(), Due(b"bert", ("bert",), Timer("wake", "", 5))
    its = work(processor)
    said = r"on_timer\(\) of .*\(user='bert'\), .*: LookupError: wake of bert"
    with pytest.raises(ProcessorError, match=said) as caught:
        list(its._pack("on_timer", its._call_on_timer(processor, iter([due]))))
    assert isinstance(caught.value.__cause__, LookupError)


def test_an_error_of_many_keys_names_the_rest() -> None:
    said = r"AtOnce\.process_batch\(\) of .* failed for partition 3, batch 17: KeyError"
    with pytest.raises(ProcessorError, match=said):
        processed(AtOnce(), [1, 2, 3])


def test_a_call_for_one_of_many_keys_names_it() -> None:
    said = r"it failed for key \(\('anna', 3\)\), .*: ValueError: no"
    with pytest.raises(ProcessorError, match=said) as caught, locate_errors("it", WHERE):
        raise CallError(("anna", 3)) from ValueError("no")
    assert isinstance(caught.value.__cause__, ValueError)


def test_errors_of_this_package_stay_what_they_are() -> None:
    problem = InvalidInputError("a value of a wrong type", hint="Give another.")
    with pytest.raises(InvalidInputError) as caught, locate_errors("it", WHERE):
        raise problem
    assert caught.value is problem


def test_an_error_that_cannot_be_shown_does_not_hide_where_it_was() -> None:
    said = r"partition 3, batch 17: OddError: its text cannot be shown"
    with pytest.raises(ProcessorError, match=said), locate_errors("it", WHERE):
        raise OddError(1, 2)


class RudeError(Exception):
    """Ends the process when it is shown."""

    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (MemoryError("no room"), "MemoryError: no room"),
        (StopIteration(7), "StopIteration: 7"),
        (BaseException("bare"), "BaseException: bare"),
        (RudeError(), "RudeError: its text cannot be shown"),
    ],
    ids=repr,
)
def test_whatever_ends_the_users_code_is_an_error_that_says_where(problem: BaseException, said: str) -> None:
    with pytest.raises(ProcessorError, match=f"partition 3, batch 17: {said}") as caught, locate_errors("it", WHERE):
        raise problem
    assert caught.value.__cause__ is problem


class Quits(KeyedProcessor):
    """Ends the process in the middle of its rows."""

    def process(self, _ctx: Context, key: Any, _rows: Sequence[Any]) -> Iterator[tuple[int]]:  # noqa: ANN401
        yield (1,)
        if key.user == "bert":
            raise SystemExit


def test_a_processor_that_ends_the_process_is_named_with_its_key() -> None:
    with pytest.raises(ProcessorError, match=r"Quits\.process\(\) .* \(user='bert'\), .*: SystemExit"):
        processed(Quits(), [1, 2, 3])


def test_whoever_takes_no_more_rows_gets_no_error() -> None:
    def rows() -> Generator[int, None, None]:
        with locate_errors("it", WHERE):
            yield from range(9)

    taken = rows()
    assert next(taken) == 0
    taken.close()
    assert list(taken) == []


HIDDEN = type("Hidden", (), {"__repr__": lambda _: 1 / 0})()


@pytest.mark.parametrize("key", ["x" * 5000, ("x" * 5000, 1), HIDDEN, None, b"\0"])
def test_a_key_is_shown_shortened(key: object) -> None:
    assert len(show(key)) < 250


def test_an_exit_says_where_it_was_called() -> None:
    with (
        pytest.raises(ProcessorError, match=r"It.process\(\) failed for partition 3, batch 17: SystemExit: 3"),
        locate_errors("It.process()", WHERE),
    ):
        sys.exit(3)
