"""``pyspark-ckpt state``, on a checkpoint that a query has left."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main
from tests.compat.frozen import unpack


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("v1", "keyed", tmp_path_factory.mktemp("frozen") / "keyed")


def run(capsys: pytest.CaptureFixture[str], command: str, checkpoint: Path, *arguments: str) -> tuple[int, str, str]:
    code = main(["state", command, str(checkpoint), "--uid", "kinds", *arguments])
    written = capsys.readouterr()
    return code, written.out, written.err


def test_read_shows_rows_in_three_formats(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "read", checkpoint, "--state", "words", "--format", "json")
    rows = [json.loads(line) for line in text.splitlines()]
    assert (code, len(rows)) == (0, 11)
    code, text, _ = run(capsys, "read", checkpoint, "--state", "words", "--format", "csv")
    assert [
        (json.loads(row["key"]), row["map_key"], int(row["value"])) for row in csv.DictReader(io.StringIO(text))
    ] == [(row["key"], row["map_key"], row["value"]) for row in rows]
    code, text, _ = run(capsys, "read", checkpoint, "--state", "words", "--limit", "3")
    header, *lines = text.splitlines()
    assert header.split()[:3] == ["key", "map_key", "value"]
    assert len(lines) == 3


def test_a_table_says_that_there_are_more_rows(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ckpt.cli.states.TABLE_ROWS", 10)
    _, text, more = run(capsys, "read", checkpoint, "--state", "words")
    assert len(text.splitlines()) == 11
    assert "the first 10 rows" in more
    _, text, more = run(capsys, "read", checkpoint, "--state", "words", "--limit", "11")
    assert (len(text.splitlines()), more) == (12, "")


def test_count_counts_elements_of_lists(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "count", checkpoint, "--state", "names")[:2] == (0, "24 elements\n")
    assert run(capsys, "count", checkpoint, "--state", "names", "--format", "csv")[:2] == (0, "24\n")
    assert run(capsys, "count", checkpoint, "--state", "words")[:2] == (0, "11 entries\n")
    _, text, _ = run(capsys, "count", checkpoint, "--state", "names", "--version", "1", "--format", "json")
    assert json.loads(text) == {"version": 1, "rows": 12}


def test_inspect_and_count_say_what_they_count(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "inspect", str(checkpoint)]) == 0
    text = capsys.readouterr().out
    assert "operator 0: keyed kinds\n" in text
    rows = {words[1]: words[2:] for line in text.splitlines() if len(words := line.split()) > 2}
    assert rows["state"][:2] == ["stored", "rows"]
    assert rows["kinds/names"] == ["29", "user", "bigint", "element", "string"], "24 elements of 5 keys"
    assert rows["kinds/words"][0] == "11"
    assert rows["kinds/words#expiry"] == ["user", "bigint"], "nobody counts the rows of an index"
    assert "A list has a stored row for each element, and one for its key." in text


@pytest.mark.parametrize("key", ["3", "[3]", '{"user": 3}'])
def test_get_shows_the_rows_of_a_key(key: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "get", checkpoint, "--state", "recent", "--key", key, "--format", "json")
    assert code == 0
    assert [json.loads(line)["value"] for line in text.splitlines()] == [13, 18, 23]


def test_get_says_by_its_exit_code_that_a_key_has_no_row(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "get", checkpoint, "--state", "recent", "--key", "77")[0] == 1


def test_what_is_not_there_is_refused_by_what_is(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (("--state", "nope"), "no state for uid 'kinds', state 'nope'; there are: state 'days'"),
        ((), "has 10 states for uid 'kinds': state 'days' of 'kinds'"),
        (("--state", "seen", "--version", "9"), "no version 9: there are 1 to 4"),
    ):
        code, _, text = run(capsys, "read", checkpoint, *arguments)
        assert (code, words in text) == (2, True), text
    code, _, text = run(capsys, "get", checkpoint, "--state", "seen", "--key", '"text"')
    assert (code, "keys of" in text) == (2, True), text
    assert main(["state", "get", str(checkpoint), "--key", "no json"]) == 2
    assert "is not JSON" in capsys.readouterr().err


def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, meant in (
        (("--uid", "kinds", "--state", "wrods"), "words"),
        (("--uid", "kind", "--state", "words"), "kinds"),
        (("--store", "Defualt"), "default"),
    ):
        assert main(["state", "read", str(checkpoint), *arguments]) == 2
        assert f"Did you mean {meant!r}?" in capsys.readouterr().err
