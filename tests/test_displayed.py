"""What users see who print an object, or end a notebook's cell with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from tests.compat.frozen import unpack


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("v1", "keyed", tmp_path_factory.mktemp("frozen") / "keyed")


def test_a_reader_says_what_it_reads_and_lists_states_that_it_knows(checkpoint: Path) -> None:
    with ckpt.reading.open_state(str(checkpoint), uid="kinds") as reader:
        assert repr(reader) == f"StateReader({checkpoint}, version {reader.version}, uid 'kinds')"
        assert "words" not in reader._repr_html_()
        (words,) = (state for state in reader.states if state.name == "words")
        assert repr(words) == "StoredState(state 'words' of 'kinds' (operator 0), MapState, 11 stored rows)"
        assert "<td>words</td>" in reader._repr_html_()
        assert "<td>words</td>" in words._repr_html_()
    assert repr(reader).endswith(", closed)")


def test_savepoints_and_restores_are_shown_in_a_line_and_as_tables(checkpoint: Path, tmp_path: Path) -> None:
    saved = ckpt.savepoint(str(checkpoint), str(tmp_path / "saved"))
    assert repr(saved).startswith(f"SavepointInfo(native savepoint of {checkpoint}, batch {saved.version - 1}, ")
    assert "kinds/words" in saved._repr_html_()
    done = ckpt.restore(str(tmp_path / "saved"), str(tmp_path / "restored"), parallelism=3)
    assert repr(done).startswith(f"Restored({tmp_path / 'restored'}, continues after batch {saved.version - 1}, 3 ")
    assert "kinds/words" in done._repr_html_()
    for each in (saved, done):
        assert "\n" not in repr(each)


def test_names_in_tables_are_no_markup() -> None:
    from pyspark_ckpt.state_store.display import html_table

    shown = html_table("<i>", ["<b>"], [["<script>", 1234567]])
    assert "<i>" not in shown
    assert "<b>" not in shown
    assert "<script>" not in shown
    assert "1,234,567" in shown


def test_declared_states_look_as_they_are_declared() -> None:
    assert repr(ckpt.ValueState("views", "long")) == "ValueState('views', 'long')"
    assert repr(ckpt.MapState("words", "string", "long", ttl="1 h")).startswith(
        "MapState('words', 'string', 'long', ttl=Ttl("
    )
    assert repr(ckpt.MetricCounter("late")) == "MetricCounter('late')"
