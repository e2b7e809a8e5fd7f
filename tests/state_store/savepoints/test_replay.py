"""Plans that a restore carries over from the run that a query goes back from, or refuses and writes nothing."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.running.turns import Turn
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, files, find_step, written


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


def go_on(query: Query, location: Path, batches: int) -> None:
    """Rescale the query to three partitions, without a record of it, and run it there."""
    savepoints.restore(query.location, str(location), parallelism=3)
    planned = int((Path(query.location) / "offsets" / str(query.version)).exists())
    for batch in range(query.version + planned, query.version + planned + batches):
        offset = b'{"logOffset":%d}' % batch
        entry = {"conf": {"spark.sql.shuffle.partitions": "3"}}
        (location / "offsets" / str(batch)).write_bytes(b"v1\n%s\n%s" % (json.dumps(entry).encode(), offset))
        (location / "sources" / "0" / str(batch)).write_bytes(b'v1\n{"path":"file:///in/%d"}' % batch)


def plans(checkpoint: Path) -> dict[str, str]:
    """The offsets of the plans that a restore has carried over."""
    return {name: offsets(content)[1] for name, content in files(checkpoint / "_ckpt" / "replay").items()}


@pytest.mark.parametrize("order", [("query", "moved"), ("moved", "query")])
def test_plans_come_from_all_checkpoints_on_which_the_query_has_run(
    query: Query, quick_path: Path, order: tuple[str, str]
) -> None:
    go_on(query, quick_path / "moved", 2)
    for name in ("3", "4"):
        (quick_path / "moved" / "offsets" / name).unlink(missing_ok=True)
    earlier = [quick_path / name for name in order]
    savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"), replay_from=earlier)
    assert plans(quick_path / "new") == {str(batch): f'{{"logOffset":{batch}}}' for batch in range(3, 8)}
    assert files(quick_path / "new" / "sources") == files(quick_path / "moved" / "sources")


def test_of_two_plans_of_a_batch_that_of_the_last_checkpoint_is_taken(query: Query, quick_path: Path) -> None:
    other = quick_path / "other"
    shutil.copytree(query.location, other)
    name = "offsets/5"
    (other / name).write_bytes((other / name).read_bytes().replace(b'"logOffset":5', b'"logOffset":9'))
    for earlier, offset in ((query.location, other), 9), ((other, query.location), 5):
        target = quick_path / f"new-{offset}"
        savepoints.restore(str(quick_path / "saved"), str(target), replay_from=earlier)
        assert plans(target)["5"] == f'{{"logOffset":{offset}}}'


def test_a_plan_that_follows_on_other_rows_is_refused(query: Query, quick_path: Path) -> None:
    """The rows between the two would be lost, or be there twice."""
    other = quick_path / "other"
    shutil.copytree(query.location, other)
    (other / "offsets" / "5").unlink()
    (other / "offsets" / "4").write_bytes((other / "offsets" / "4").read_bytes().replace(b'Offset":4', b'Offset":9'))
    earlier = [query.location, str(other)]
    with pytest.raises(InvalidInputError, match=r"batch 4 has other rows on .*query than on .*other, .* has batch 5"):
        savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"), replay_from=earlier)
    assert not (quick_path / "new").exists()
    savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"), replay_from=earlier[::-1])
    assert plans(quick_path / "new")["4"] == '{"logOffset":4}'


def test_a_checkpoint_that_began_later_does_not_count_as_one_that_has_deleted_its_plans(
    query: Query, quick_path: Path
) -> None:
    query.run()
    go_on(query, quick_path / "moved", 1)
    os.utime(quick_path / "moved" / "offsets" / "6", (time.time() + 60,) * 2)
    with pytest.raises(InvalidInputError, match=r"moved has no offsets/3: ") as refused:
        savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"), replay_from=quick_path / "moved")
    assert "moved begins with offsets/4: a restore or a rescaling has made it." in refused.value.hint
    assert "minBatchesToRetain" not in refused.value.hint
    query.place.delete("offsets/3")
    earlier = [query.location, str(quick_path / "moved")]
    with pytest.raises(InvalidInputError, match=r"none of .*query, .*moved has offsets/3: ") as refused:
        savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"), replay_from=earlier)
    assert "minBatchesToRetain" in refused.value.hint
    assert "name in `replay_from` all checkpoints" in refused.value.hint


@pytest.mark.parametrize("given", [[], 3, ["", "x"], [None]])
def test_what_is_no_location_is_refused(query: Query, quick_path: Path, given: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match="replay_from"):
        savepoints.restore(str(quick_path / "saved"), str(quick_path / "new"), replay_from=given)
    assert query.version


def test_a_restore_that_was_interrupted_goes_on_with_the_same_checkpoints(
    query: Query, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of one checkpoint is as earlier builds have written it."""
    saved, target = str(quick_path / "saved"), quick_path / "new"
    go_on(query, quick_path / "moved", 2)
    for earlier, recorded in (
        ([query.location], {"replay_from": query.location}),
        (
            [query.location, str(quick_path / "moved")],
            {"replay_from": query.location, "replay_also_from": [str(quick_path / "moved")]},
        ),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(find_step("copy_logs"), lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                savepoints.restore(saved, str(target), replay_from=earlier)
        request = json.loads((target / "_ckpt" / "restore" / "request.json").read_bytes())
        assert {name: request[name] for name in request if name.startswith("replay")} == recorded
        with pytest.raises(InvalidInputError, match="another"):
            savepoints.restore(saved, str(target), replay_from=[*earlier, str(quick_path / "moved")])
        savepoints.restore(saved, str(target), replay_from=earlier)
        assert set(plans(target)) == {str(batch) for batch in range(3, 6 if len(earlier) == 1 else 8)}
        shutil.rmtree(target)


def test_a_restore_tells_of_batches_on_checkpoints_to_which_the_query_was_moved(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved, saved = quick_path / "moved", str(quick_path / "saved")
    go_on(query, moved, 2)
    turn = Turn.take(query.place, place_at(str(moved), query.options.s3), "app on host", str(moved))
    turn.finish()
    for number, earlier in enumerate((None, query.location)):
        savepoints.restore(saved, str(quick_path / f"new-{number}"), replay_from=earlier)
        told = capsys.readouterr().err
        assert f"has gone on to batch 7 on {moved}. " in told
        assert f"will not take {6 if earlier else 3} to 7 again." in told
        assert f"({query.location}, {moved}, and any others)" in told
    savepoints.restore(saved, str(quick_path / "both"), replay_from=[query.location, moved])
    assert "has gone on" not in capsys.readouterr().err


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
    restored_from(
        query.location, quick_path, InvalidInputError, r"query has no offsets/3: .* after 2 .*it keeps the last"
    )


def test_a_restore_with_the_plans_of_another_run_is_refused(query: Query, quick_path: Path) -> None:
    name = "offsets/2"
    query.place.put(name, query.place.get(name).replace(b'"logOffset":2', b'"logOffset":7'))
    restored_from(query.location, quick_path, InvalidInputError, r"query, whose offsets/2 differs from that of .*saved")


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
    with pytest.raises(InvalidInputError, match=r"this restore has already finished|is not empty"):
        savepoints.restore(saved, new)


def test_the_command_line_names_the_run(query: Query, quick_path: Path) -> None:
    given = ["savepoint", "restore", str(quick_path / "saved"), str(quick_path / "new")]
    assert main([*given, "--replay-from", query.location]) == 0
    assert set(files(quick_path / "new" / "_ckpt" / "replay")) == {"3", "4", "5"}
    go_on(query, quick_path / "moved", 1)
    given[-1] = str(quick_path / "newer")
    earlier = ["--replay-from", query.location, "--replay-from", str(quick_path / "moved")]
    assert main([*given, *earlier, "--dry-run"]) == 0
    assert main([*given, *earlier]) == 0
    assert set(files(quick_path / "newer" / "_ckpt" / "replay")) == {"3", "4", "5", "6"}


def test_a_restore_tells_of_the_batches_that_the_query_has_run_since(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(quick_path / "saved")
    savepoints.restore(saved, str(quick_path / "first"))
    told = capsys.readouterr().err
    assert "has gone on to batch 5 on " in told
    assert "will not take 3 to 5 again. So that they have the same rows, restore with replay_from, " in told
    assert f"({query.location}, and any others)" in told
    savepoints.restore(saved, str(quick_path / "second"), query_id="new")
    savepoints.restore(saved, str(quick_path / "third"), replay_from=query.location)
    query.place.delete("metadata")
    savepoints.restore(saved, str(quick_path / "fourth"))
    assert "has gone on" not in capsys.readouterr().err
