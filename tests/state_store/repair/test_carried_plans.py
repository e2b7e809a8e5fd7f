"""``checkpoint repair`` and ``verify`` of a query that has gone back with ``replay_from``: its plans may be damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import BlobPlace, LocalPlace
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.saved_query import files, written

NOTE = "_ckpt/replay.json"
DAMAGE = {"empty": b"", "cut": b'v1\n{"batchWatermarkMs":0', "deleted": None}


@pytest.fixture
def place(quick_path: Path) -> BlobPlace:
    """A checkpoint that goes on after batch 2, with the plans of batches 3 to 5."""
    query = written(quick_path / "query", 2, operators=(0,))
    savepoints.savepoint(query.location, str(quick_path / "saved"))
    query.run(2)
    query.plan()
    savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"), replay_from=query.location)
    return LocalPlace(quick_path / "new")


def damage(place: BlobPlace, name: str, content: bytes | None) -> None:
    if content is None:
        place.delete(name)
    else:
        place.put(name, content)


def run_repair(place: BlobPlace, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    main(["checkpoint", "repair", place.url, "--json", *more])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def verified(place: BlobPlace, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``verify`` finds, empty if all is right."""
    capsys.readouterr()
    code = main(["checkpoint", "verify", place.url])
    found = capsys.readouterr().out
    assert code == ("WRONG" in found)
    return found if code else ""


def list_names(place: BlobPlace, folder: str) -> set[str]:
    return {blob.name for blob in place.walk(folder)}


def test_a_query_with_all_its_plans_is_healthy(place: BlobPlace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "repair", place.url]) == 0
    assert "Batches 3 to 5 run again with the rows that were planned for them." in capsys.readouterr().out
    found = run_repair(place, capsys)
    assert (found["runs_again"], found["cut_anew"], found["problems"]) == ([3, 4, 5], [], [])
    assert verified(place, capsys) == ""


@pytest.mark.in_turn
@pytest.mark.parametrize("batch", [3, 4, 5])
@pytest.mark.parametrize("how", DAMAGE)
def test_plans_after_one_that_is_lost_are_moved_away(
    how: str, batch: int, place: BlobPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(place, f"_ckpt/replay/{batch}", DAMAGE[how])
    before = files(Path(place.url))
    assert f"/_ckpt/replay/{batch} is " in verified(place, capsys)
    found = run_repair(place, capsys)
    assert [each for each in found["problems"] if f"{place.url}/_ckpt/replay/{batch} is" in each]
    assert found["continues_after_batch"] == 2
    assert found["runs_again"] == list(range(3, batch))
    assert found["cut_anew"] == [batch, 5]
    assert files(Path(place.url)) == before
    assert run_repair(place, capsys, "--apply")["kept_in"]
    assert list_names(place, "_ckpt/replay") == {f"_ckpt/replay/{each}" for each in range(3, batch)}
    assert list_names(place, "sources") == {f"sources/0/{each}" for each in range(6)}
    assert run_repair(place, capsys)["is_healthy"]
    assert verified(place, capsys) == ""


@pytest.mark.in_turn
@pytest.mark.parametrize("content", [b"", None], ids=["empty", "deleted"])
@pytest.mark.parametrize("log", [3, 4, 5])
def test_plans_whose_source_files_are_lost_are_moved_away_and_the_files_of_others_stay(
    log: int, content: bytes | None, place: BlobPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(place, f"sources/0/{log}", content)
    assert f"/sources/0/{log} is " in verified(place, capsys)
    found = run_repair(place, capsys, "--apply")
    assert (found["runs_again"], found["cut_anew"]) == (list(range(3, log)), [log, 5])
    assert list_names(place, "_ckpt/replay") == {f"_ckpt/replay/{each}" for each in range(3, log)}
    assert list_names(place, "sources") == {f"sources/0/{each}" for each in range(log)}
    assert run_repair(place, capsys)["is_healthy"]
    assert verified(place, capsys) == ""


@pytest.mark.parametrize("content", [b"", None], ids=["empty", "deleted"])
def test_a_plan_that_spark_has_taken_up_is_taken_up_again(
    content: bytes | None, place: BlobPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(place, "offsets/3", content)
    found = run_repair(place, capsys, "--apply")
    assert (found["runs_again"], found["cut_anew"]) == ([3, 4, 5], [])
    assert "offsets/3" not in list_names(place, "offsets")
    assert run_repair(place, capsys)["is_healthy"]


def test_a_plan_that_is_in_sparks_log_is_not_missed(place: BlobPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("offsets/3", place.get("_ckpt/replay/3"))
    place.delete("_ckpt/replay/3")
    assert run_repair(place, capsys)["runs_again"] == [3, 4, 5]
    assert verified(place, capsys) == ""


def test_older_checkpoints_have_no_note_of_the_last_plan(place: BlobPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.delete(NOTE)
    found = run_repair(place, capsys)
    assert (found["is_healthy"], found["runs_again"]) == (True, [3, 4, 5])
    place.delete("_ckpt/replay/4")
    assert run_repair(place, capsys)["cut_anew"] == [4, 5]
    assert "replay/4 is missing" in verified(place, capsys)


def test_a_note_that_is_damaged_is_moved_away(place: BlobPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.put(NOTE, place.get(NOTE).replace(b'"last":5', b'"last":6'))
    assert f"{NOTE} is damaged" in verified(place, capsys)
    found = run_repair(place, capsys, "--apply")
    assert (found["removed"], found["runs_again"]) == ([NOTE], [3, 4, 5])
    assert run_repair(place, capsys)["is_healthy"]


def test_the_last_plan_is_missed_in_copies_too(place: BlobPlace, quick_path: Path) -> None:
    saved, second = str(quick_path / "again"), quick_path / "second"
    savepoints.savepoint(place.url, saved)
    savepoints.restore(saved, str(second))
    assert (second / NOTE).read_bytes() == place.get(NOTE)
    (second / "_ckpt" / "replay" / "5").unlink()
    with pytest.raises(InvalidInputError, match="second has no offsets/5: the batches after 2 "):
        savepoints.restore(str(quick_path / "saved"), str(quick_path / "third"), replay_from=str(second))
    for name in ("savepoint.json", "metadata"):
        Path(saved, name).unlink()
    Path(saved, "savepoint.unfinished").write_bytes(b"0123 3")
    assert main(["savepoint", "delete", saved]) == 0, "an unfinished savepoint may have the note"
