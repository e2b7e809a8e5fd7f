"""Frames that are made when they are asked for give what frames give that were made at once."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operators.groups.lazy_frames import LazyDataFrame, Slices

COLUMNS: Mapping[Any, Any] = {
    "long": np.array([3, -1, 2**62, 2**62, 0, 7]),
    "small": np.array([1, 127, 127, -128, 0, 5], np.int8),
    "positive": np.array([1, 2**64 - 1, 3, 4, 5, 6], np.uint64),
    "double": np.array([0.1, 0.2, np.nan, np.inf, -np.inf, -0.0]),
    "float": np.array([1e30, 3.4e38, 1, np.nan, 0, 1e-30], np.float32),
    "half": np.array([1, 65504, 65504, np.nan, 0, 0.1], np.float16),
    "flag": np.array([True, False, True, True, False, False]),
    "text": np.array(["a", None, "b", "", "c", "d"], object),
    "at": pd.to_datetime(np.array([1, 2, None, 4, 5, 6])),
    "there": pd.to_datetime(np.array([1, 2, None, 4, 5, 6]), utc=True),
    "mine": pd.array([1, None, 3, 4, 5, 6], "Int64"),
    "sum": np.arange(6) + 0.5,
    "the name": np.arange(6),
    7: np.arange(6),
}
NAMES = list(COLUMNS)
"""One that is a method of frames, one that is no attribute, and one that is no text."""

Asked = Callable[[pd.DataFrame, Any], Any]
"""What is asked of a frame and of one of its columns."""

QUESTIONS: dict[str, Asked] = {
    "length": lambda frame, _: len(frame),
    "length of a column": lambda _, column: len(column),
    "sum": lambda _, column: column.sum(),
    "sum of some": lambda _, column: column.sum(min_count=9),
    "sum by numpy": lambda _, column: np.sum(column),
    "sum by python": lambda _, column: sum(column),
    "min": lambda _, column: column.min(),
    "max": lambda _, column: column.max(),
    "max with gaps": lambda _, column: column.max(skipna=False),
    "max of no axis": lambda _, column: column.max(axis=1),
    "mean": lambda _, column: column.mean(),
    "list": lambda _, column: column.tolist(),
    "iteration": lambda _, column: list(column),
    "backwards": lambda _, column: list(reversed(column)),
    "membership": lambda _, column: 1 in column,
    "empty": lambda frame, column: (frame.empty, column.empty),
    "shape": lambda frame, column: (frame.shape, column.shape),
    "columns": lambda frame, _: frame.columns,
    "iteration of a frame": lambda frame, _: list(frame),
    "first": lambda _, column: column[0],
    "behind": lambda _, column: column[4],
    "last by minus": lambda _, column: column[-1],
    "slice": lambda _, column: column[1:],
    "first by place": lambda _, column: column.iloc[0],
    "array": lambda _, column: column.to_numpy(),
    "values": lambda _, column: column.values,  # noqa: PD011 - as programs do
    "attribute": lambda frame, _: frame.long,
    "attribute of a method's name": lambda frame, _: callable(frame.sum),
    "no attribute": lambda frame, _: frame.none,
    "no column": lambda frame, _: frame["none"],
    "no column, of a list": lambda frame, _: frame[["none"]],
    "columns by list": lambda frame, _: frame[["text", "long"]],
    "rows by mask": lambda frame, column: frame[column.notna()],
    "rows by number": lambda frame, _: frame[1:],
    "column by number": lambda frame, _: frame[7],
    "texts": lambda frame, _: repr(frame),
    "text of a column": lambda _, column: str(column),
    "arithmetic": lambda frame, _: frame["long"] * 2 + frame["small"],
    "comparison": lambda _, column: column == column[0],
    "rows": lambda frame, _: [tuple(row) for row in frame.itertuples()],
    "grouping": lambda frame, _: frame.groupby("flag")["long"].sum(),
    "concatenation": lambda frame, _: pd.concat([frame, frame]),
    "merge": lambda frame, _: frame[["long", "flag"]].merge(frame[["long", "small"]], on="long"),
    "records": lambda frame, _: frame.to_dict("records"),
    "copy": lambda frame, column: (frame.copy(), copy.copy(frame), copy.deepcopy(column)),
    "pickle": lambda frame, column: pickle.loads(pickle.dumps((frame, column))),  # noqa: S301 - our own
    "pickle of attrs": lambda frame, column: [
        pickle.loads(pickle.dumps(each)).attrs  # noqa: S301 - our own
        for each in (frame, column)
        if each.attrs.update(a=1) is None
    ],
    "unpickled": lambda frame, _: pickle.loads(pickle.dumps(frame)).sum(numeric_only=True),  # noqa: S301 - our own
    "is": lambda frame, column: (isinstance(frame, pd.DataFrame), isinstance(column, pd.Series)),
    "flags": lambda frame, column: (frame.flags.allows_duplicate_labels, column.flags.allows_duplicate_labels),
    "unlike flags": lambda frame, _: frame.set_flags(allows_duplicate_labels=False),
    "unlike flags from now on": lambda frame, _: setattr(frame.flags, "allows_duplicate_labels", False),
    "unlike flags of a column": lambda _, column: setattr(column.flags, "allows_duplicate_labels", False),
    "attrs": lambda frame, column: (frame.attrs, column.attrs, column.name),
    "write into a column": lambda _, column: column.__setitem__(0, column[1]),
    "write into a frame": lambda frame, _: frame.loc.__setitem__((0, "long"), 100),
    "write all": lambda frame, _: frame.__setitem__("long", 5),
    "write one more": lambda frame, _: frame.__setitem__("more", frame["long"] + 1),
    "write an attribute": lambda frame, _: setattr(frame, "long", 6),
    "write into an array": lambda _, column: column.to_numpy().__setitem__(0, column[1]),
    "rename": lambda _, column: setattr(column, "name", "other"),
    "another index": lambda frame, _: setattr(frame, "index", frame.index + 10),
    "another index of a column": lambda _, column: setattr(column, "index", column.index + 10),
    "delete": lambda frame, _: frame.__delitem__("small"),
    "drop in place": lambda frame, _: frame.drop(columns="small", inplace=True),  # noqa: PD002 - as programs do
    "sort in place": lambda frame, _: frame.sort_values("long", inplace=True),  # noqa: PD002 - as programs do
    "fill in place": lambda _, column: column.fillna(0, inplace=True),  # noqa: PD002 - as programs do
    "attrs of its own": lambda frame, _: frame.attrs.update(a=1),
}


SPANS = ((0, 6), (2, 5), (3, 4))
NAMED = st.tuples(st.sampled_from(sorted(QUESTIONS)), st.sampled_from(NAMES))


@pytest.mark.in_turn
@pytest.mark.parametrize("copies", [False, True], ids=["shared", "copy on write"])
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.filterwarnings("ignore")
def test_an_answer_is_that_of_a_frame(question: str, *, copies: bool) -> None:
    for span, name in product(SPANS, NAMES):
        _check([(question, name), ("sum", name)], span, copies=copies)


@given(st.lists(NAMED, min_size=2, max_size=5), st.sampled_from(SPANS), st.booleans())
@settings(deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_answers_that_follow_each_other_are_those_of_a_frame(
    asked: list[tuple[str, Any]],
    span: tuple[int, int],
    copies: bool,  # noqa: FBT001 - hypothesis names it
) -> None:
    _check(asked, span, copies=copies)


def _check(asked: list[tuple[str, Any]], span: tuple[int, int], *, copies: bool) -> None:
    with pd.option_context("mode.copy_on_write", copies):
        lazy, made = (_answers(asked, *frames) for frames in _two(*span))
        for (question, name), answer, expected in zip(asked, lazy, made, strict=True):
            assert _is_same(answer, expected), f"{question} of {name!r}: {answer!r}, not {expected!r}"


def _two(first: int, behind: int) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """The rows to be asked, and all of those that they are of: lazy, and made."""
    for is_lazy in (True, False):
        everything = pd.DataFrame({name: values.copy() for name, values in COLUMNS.items()})
        slices = Slices(everything)
        yield slices.rows(first, behind) if is_lazy else slices.make(first, behind), everything


def _answers(asked: list[tuple[str, Any]], frame: pd.DataFrame, everything: pd.DataFrame) -> list[Any]:
    """What is answered, in turn, by a frame and the columns that were taken from it, and what is left at the end."""
    held: dict[Any, Any] = {}
    answers: list[Any] = []
    for question, name in asked:
        with _as_answers(answers):
            column = held.setdefault(name, frame[name])
            answers.append(QUESTIONS[question](frame, column))
    left = answers[len(asked) - 1], frame, everything, list(held.values()), type(frame.copy())
    return [*answers[: len(asked) - 1], left]


@contextmanager
def _as_answers(answers: list[Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - is what is answered
        answers.append((type(error), re.sub("Lazy(?=DataFrame|Series)", "", str(error))))


def _is_same(answer: Any, expected: Any) -> bool:  # noqa: ANN401 - all that programs get
    """Whether they are alike in type, value and, of frames, all that is with them."""
    kind = next((kind for kind in _ARE_SAME if isinstance(expected, kind)), None)
    if kind is not None:
        return isinstance(answer, kind) and _ARE_SAME[kind](answer, expected)
    if type(answer) is not type(expected):
        return False
    return bool(answer is expected or answer == expected or (pd.isna(answer) and pd.isna(expected)))


def _are_same(answers: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(answers) == len(expected) and all(map(_is_same, answers, expected))


def _are_same_frames(answer: Any, expected: Any) -> bool:  # noqa: ANN401 - or columns
    is_frame = isinstance(expected, pd.DataFrame)
    if is_frame:
        pd.testing.assert_frame_equal(answer, expected, check_index_type=True, check_flags=True, check_frame_type=False)
    else:
        pd.testing.assert_series_equal(
            answer, expected, check_index_type=True, check_flags=True, check_series_type=False
        )
    return bool(answer.attrs == expected.attrs)


_ARE_SAME: Mapping[type[Any], Callable[[Any, Any], bool]] = {
    list: _are_same,
    tuple: _are_same,
    dict: lambda answer, expected: _are_same(list(answer.items()), list(expected.items())),
    pd.DataFrame: _are_same_frames,
    pd.Series: _are_same_frames,
    pd.Index: lambda answer, expected: bool(answer.equals(expected)),
    np.ndarray: lambda answer, expected: answer.dtype == expected.dtype and _are_same(list(answer), list(expected)),
}


@pytest.mark.parametrize("copies", [False, True], ids=["shared", "copy on write"])
@pytest.mark.parametrize("question", ["length", "sum", "list", "first", "iteration", "max", "attribute", "empty"])
def test_what_is_asked_most_makes_no_frame(question: str, *, copies: bool) -> None:
    """Also with copy-on-write, as in pandas 3: a column is made alone then."""
    with pd.option_context("mode.copy_on_write", copies):
        lazy, _ = next(_two(1, 4))
        column = lazy["long"]
        QUESTIONS[question](lazy, column)
        assert "_mgr" not in vars(lazy)
        assert "_mgr" not in vars(column)
        assert lazy.shape == (3, len(NAMES))
        assert "_mgr" in vars(lazy)
        assert ("_mgr" in vars(column)) is not copies
        assert column.cumsum().to_list() == lazy["long"].cumsum().to_list()


@pytest.mark.filterwarnings("ignore")
def test_a_value_of_another_type_changes_the_column_but_not_the_frame() -> None:
    for frame, _ in _two(1, 4):
        column = frame["long"]
        column[0] = "z"
        assert column[0] == "z"
        assert frame["long"].dtype == (np.int64 if isinstance(frame, LazyDataFrame) else object)


def test_a_name_that_stands_twice_is_of_two_columns() -> None:
    frame = Slices(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"])).rows(0, 2)
    assert frame["a"].shape == (2, 2)


def test_a_frame_is_gone_when_nobody_has_it() -> None:
    lazy, _ = next(_two(1, 4))
    assert lazy["long"].sum() == lazy.long.sum()
    gone = weakref.ref(lazy)
    gc.disable()
    try:
        del lazy
        assert gone() is None  # with no help by the garbage collector, which would have one in turn for each key
    finally:
        gc.enable()
