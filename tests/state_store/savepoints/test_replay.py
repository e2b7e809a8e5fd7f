"""Plans that a restore carries over from the run that a query goes back from, or refuses and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, files, written


@pytest.fixture
def query(quick_path: Path) -> Query:
    """Three batches are committed, a savepoint is taken, two more follow, and another is planned."""
    query = written(quick_path / "query", 2, operators=(0,))
    savepoints.savepoint(query.location, str(quick_path / "saved"))
    query.run(2)
    query.plan()
    return query


def offsets(content: bytes) -> tuple[str, str]:
    """The number of partitions in an entry of the log, and the offset of its source."""
    _, entry, offset = content.decode().split("\n")
    return json.loads(entry)["conf"]["spark.sql.shuffle.partitions"], offset


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
@pytest.mark.parametrize("partitions", [2, 3])
def test_a_restore_carries_over_all_plans_and_what_sources_need_for_them(
    query: Query, quick_path: Path, kind: str, partitions: int
) -> None:
    saved, target = str(quick_path / "other"), quick_path / "new"
    savepoints.restore(str(quick_path / "saved"), str(quick_path / "first"))
    savepoints.savepoint(str(quick_path / "first"), saved, kind="canonical" if kind == "canonical" else "native")
    savepoints.restore(saved, str(target), parallelism=partitions, replay_from=query.location)
    plans = {name: offsets(content) for name, content in files(target / "_ckpt" / "replay").items()}
    assert plans == {str(batch): (str(partitions), f'{{"logOffset":{batch}}}') for batch in (3, 4, 5)}
    assert set(files(target / "offsets")) == {"1", "2"}
    assert files(target / "sources") == files(quick_path / "query" / "sources")


def test_plans_that_have_not_run_go_with_savepoints_and_restores(query: Query, quick_path: Path) -> None:
    first, saved, second = (str(quick_path / name) for name in ("first", "again", "second"))
    savepoints.restore(str(quick_path / "saved"), first, replay_from=query.location)
    savepoints.savepoint(first, saved)
    savepoints.restore(saved, second)
    assert set(files(quick_path / "second" / "_ckpt" / "replay")) == {"3", "4", "5"}
    savepoints.restore(second, str(quick_path / "third"), parallelism=3)
    assert set(files(quick_path / "third" / "_ckpt" / "replay")) == {"3", "4", "5"}
    savepoints.restore(str(quick_path / "saved"), str(quick_path / "fourth"), replay_from=second)
    assert set(files(quick_path / "fourth" / "_ckpt" / "replay")) == {"3", "4", "5"}


def test_a_plan_that_does_not_follow_on_is_left(query: Query, quick_path: Path) -> None:
    """As in a copy of an older batch, whose next batch is another one."""
    savepoints.restore(str(quick_path / "saved"), str(quick_path / "first"), replay_from=query.location)
    (quick_path / "first" / "_ckpt" / "replay" / "3").unlink()
    savepoints.restore(str(quick_path / "first"), str(quick_path / "second"), parallelism=3)
    assert not (quick_path / "second" / "_ckpt" / "replay").exists()


def restored_from(earlier: object, quick_path: Path, problem: type[CkptError], text: str) -> None:
    with pytest.raises(problem, match=text):
        savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"), replay_from=str(earlier))
    assert not (quick_path / "new").exists()


def test_a_restore_without_the_plans_of_all_batches_is_refused(query: Query, quick_path: Path) -> None:
    query.place.delete("offsets/3")
    restored_from(query.location, quick_path, InvalidInputError, r"query/offsets/3 is deleted: the batches after 2 ")


def test_a_restore_with_the_plans_of_another_run_is_refused(query: Query, quick_path: Path) -> None:
    name = "offsets/2"
    query.place.put(name, query.place.get(name).replace(b'"logOffset":2', b'"logOffset":7'))
    restored_from(query.location, quick_path, InvalidInputError, r"query, whose offsets/2 is not that of .*saved")


def test_a_restore_with_the_plans_of_another_query_is_refused(query: Query, quick_path: Path) -> None:
    query.place.put("metadata", b'{"id":"5f3cbb05-6a56-4ae2-a4a1-3a7e0a2cdd1c"}')
    restored_from(query.location, quick_path, InvalidInputError, r"the checkpoint of query 5f3cbb05.* is of query")
    restored_from(quick_path / "none", quick_path, InvalidInputError, r"none, which is not the checkpoint of a query")


def test_a_restore_with_a_damaged_plan_is_refused(query: Query, quick_path: Path) -> None:
    query.place.put("offsets/4", b"v1\n{")
    restored_from(query.location, quick_path, FormatError, r"query/offsets/4 is damaged")


def test_a_repeated_restore_must_name_the_same_run(query: Query, quick_path: Path) -> None:
    saved, new = str(quick_path / "saved"), str(quick_path / "new")
    savepoints.restore(saved, new, replay_from=query.location)
    with pytest.raises(InvalidInputError, match=r"this restore has finished already|is not empty"):
        savepoints.restore(saved, new)


def test_the_command_line_names_the_run(query: Query, quick_path: Path) -> None:
    given = ["savepoint", "restore", str(quick_path / "saved"), str(quick_path / "new")]
    assert main([*given, "--replay-from", query.location]) == 0
    assert set(files(quick_path / "new" / "_ckpt" / "replay")) == {"3", "4", "5"}


def test_a_restore_tells_of_the_batches_that_the_query_has_run_since(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(quick_path / "saved")
    savepoints.restore(saved, str(quick_path / "first"))
    told = capsys.readouterr().err
    assert "has gone on to batch 5 on " in told
    assert "takes none of 3 to 5 again. Restore with replay_from" in told
    savepoints.restore(saved, str(quick_path / "second"), query_id="new")
    savepoints.restore(saved, str(quick_path / "third"), replay_from=query.location)
    query.place.delete("metadata")
    savepoints.restore(saved, str(quick_path / "fourth"))
    assert "has gone on" not in capsys.readouterr().err
