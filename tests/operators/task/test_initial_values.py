"""Initial states in a task: however many there are, before the rows of their keys, and at version 0 alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType

from pyspark_ckpt.operators import Context, KeyedProcessor, ValueState
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from tests.labs.task_lab import Row, TaskLab

_OUTPUT = pa.schema([("user", pa.string()), ("n", pa.int64()), ("text", pa.string())])
_AT = datetime(2024, 3, 1, tzinfo=timezone.utc)
_ROOM = 1 << 30


class Latest(KeyedProcessor):
    """Adds numbers, and outputs the text that the initial state has given. A state has the name of the key."""

    n = ValueState("n", LongType(), default=0)
    text = ValueState("text", StringType())
    user = ValueState("user", StringType())

    def process(self, _ctx: Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """Count on."""
        assert not self.user.exists()
        self.n.update(self.n.value() + sum(row.n for row in rows))
        yield key.user, self.n.value(), self.text.value()


def _rows(users: Sequence[int], n: int) -> list[Row]:
    return [(f"user {user}", n, _AT, f"text of {user}") for user in users]


@pytest.mark.parametrize("memory_bytes", [_ROOM, 20_000])
def test_initial_states_are_there_before_the_rows_of_their_keys_however_many_there_are(
    memory_bytes: int, tmp_path: Path
) -> None:
    lab = TaskLab(tmp_path, Latest(), _OUTPUT)
    given, come = range(1000), range(900, 1100)
    begun = lab.run(_rows(come, 1), watermark_ms=0, now_ms=1, memory_bytes=memory_bytes, initial=_rows(given, 10))
    expected = [(f"user {user}", *((11, f"text of {user}") if user < 1000 else (1, None))) for user in come]
    assert sorted(begun.rows) == sorted(expected)
    assert begun.stored == {"it/n": 1100, "it/text": 1000, "it/user": 0}
    gone_on = lab.run(_rows(given, 1), watermark_ms=0, now_ms=2, memory_bytes=memory_bytes)
    assert sorted(gone_on.rows) == sorted((f"user {user}", 11 + (user >= 900), f"text of {user}") for user in given)
    lab.close()


def test_a_key_with_two_initial_rows_is_refused_by_name(tmp_path: Path) -> None:
    lab = TaskLab(tmp_path, Latest(), _OUTPUT)
    twice = _rows([*range(20), 7], 1)
    with pytest.raises(InvalidInputError, match=r"'it': the initial state has 2 rows for the key \(user='user 7'\)"):
        lab.run([], watermark_ms=0, now_ms=1, memory_bytes=_ROOM, initial=twice)
    lab.close()


def test_initial_rows_for_stored_state_are_an_internal_error(tmp_path: Path) -> None:
    lab = TaskLab(tmp_path, Latest(), _OUTPUT)
    lab.run(_rows([1], 1), watermark_ms=0, now_ms=1, memory_bytes=_ROOM)
    with pytest.raises(InternalError, match="rows of the initial state come to version 1"):
        lab.run([], watermark_ms=0, now_ms=1, memory_bytes=_ROOM, initial=_rows([1], 1))
    lab.close()
