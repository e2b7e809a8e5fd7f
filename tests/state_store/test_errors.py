"""What is seen of an error: what happened, and what to do, once."""

from __future__ import annotations

import pickle
import traceback

import pytest

from pyspark_ckpt.state_store.errors import (
    CkptError,
    ConflictError,
    FormatError,
    InternalError,
    InvalidInputError,
    LifecycleError,
    NotFoundError,
    ProcessError,
    StorageError,
)
from pyspark_ckpt.state_store.server.rpc import error_answer

KINDS = [
    CkptError,
    ConflictError,
    NotFoundError,
    InvalidInputError,
    LifecycleError,
    StorageError,
    ProcessError,
    FormatError,
    InternalError,
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_an_error_has_the_hint_and_what_crosses_a_process_has_it_once(kind: type[CkptError]) -> None:
    problem = kind("It is broken.", hint="Mend it.")
    assert str(problem) == "It is broken. Mend it."
    assert str(kind("It is broken", hint="Mend it.")) == "It is broken. Mend it."
    assert str(kind("It is broken.", hint="")) == "It is broken."
    assert (problem.message, problem.hint) == ("It is broken.", "Mend it.")
    answer = error_answer(problem)
    assert (answer["message"], answer["hint"]) == ("It is broken.", "Mend it.")
    outer = kind(f"Elsewhere: {problem}", hint=problem.hint)
    for error in (outer, pickle.loads(pickle.dumps(outer))):  # noqa: S301 - as between our own processes
        assert str(error) == "Elsewhere: It is broken. Mend it."
        assert "".join(traceback.format_exception(error)).count("Mend it.") == 1


@pytest.mark.parametrize("kind", [StorageError, ProcessError])
def test_a_hint_of_a_kind_is_in_the_text(kind: type[CkptError]) -> None:
    assert str(kind("It is gone.")).endswith(kind.default_hint)
