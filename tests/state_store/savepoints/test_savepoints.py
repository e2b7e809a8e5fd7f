"""Savepoints without Spark: rows, and what belongs to them, stay what they are wherever they go."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import (
    CHECKPOINT_FOLDER,
    NON_RESTORED_STATE_NAME,
    SAVEPOINT_NAME,
    UNFINISHED_NAME,
    WATERMARKS_FOLDER,
)
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.labs.lab import QUERY
from tests.labs.saved_query import SAVEPOINT_KINDS, files, stored, written

ALLOWED = f"{CHECKPOINT_FOLDER}/{NON_RESTORED_STATE_NAME}"


@pytest.mark.in_turn
@pytest.mark.parametrize(("partitions", "kind"), [(2, "native"), (3, "native"), (3, "canonical")])
def test_a_savepoint_is_all_that_is_left_of_a_query(partitions: int, kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 2)
    savepoints.savepoint(query.location, str(quick_path / "taken"), kind=kind)
    shutil.rmtree(query.location)
    (quick_path / "taken").rename(quick_path / "moved")
    before = files(quick_path / "moved")
    savepoints.restore(str(quick_path / "moved"), str(quick_path / "restored"), parallelism=partitions)
    assert files(quick_path / "moved") == before, "nothing is ever added to a savepoint"
    shutil.rmtree(quick_path / "moved")
    assert stored(str(quick_path / "restored")) == (query.version, partitions, query.rows)


def test_paths_that_are_not_absolute_are_of_the_present_folder(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 2)
    monkeypatch.chdir(quick_path)
    savepoints.savepoint("query", "saved/taken")
    taken = files(quick_path / "saved")
    savepoints.restore("saved/taken", "./restored", parallelism=3)
    assert stored(str(quick_path / "restored")) == (query.version, 3, query.rows)
    assert main(["checkpoint", "verify", "restored"]) == 0
    assert main(["savepoint", "list", "saved"]) == 0
    assert "taken" in capsys.readouterr().out
    capsys.readouterr()
    assert main(["savepoint", "delete", "saved/taken", "--json"]) == 0
    place = str(quick_path / "saved" / "taken")
    assert json.loads(capsys.readouterr().out) == {"savepoint": "saved/taken", "place": place, "deleted": len(taken)}
    assert not files(quick_path / "saved")
    assert main(["checkpoint", "rescale", "query", "rescaled", "-n", "1"]) == 0
    assert stored(str(quick_path / "rescaled")) == (query.version, 1, query.rows)


def test_no_clean_up_touches_a_savepoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    target = quick_path / "taken"
    savepoints.savepoint(query.location, str(target))
    before, version, rows = files(target), query.version, dict(query.rows)
    query.run(2, snapshots=True)
    savepoints.restore(str(target), str(quick_path / "restored"))
    for location in (query.location, str(quick_path / "restored")):
        assert main(["checkpoint", "gc", location, "--keep", "1", "-o", "retentionGracePeriod=0"]) == 0
    assert files(target) == before
    assert stored(str(target)) == stored(str(quick_path / "restored")) == (version, 2, rows)
    assert main(["savepoint", "verify", str(target)]) == 0


def test_a_batch_that_was_planned_runs_again_with_its_offsets(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    batch = query.plan()
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    done = savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), parallelism=3, query_id="new")
    assert done.query_id != QUERY
    for each in range(batch - 2, batch + 1):
        old, new = ((quick_path / where / "offsets" / f"{each}").read_text() for where in ("query", "restored"))
        assert new.splitlines()[2] == old.splitlines()[2]
        conf = {"spark.sql.shuffle.partitions": "3", "spark.sql.session.timeZone": "UTC"}
        assert json.loads(new.splitlines()[1]) == {**json.loads(old.splitlines()[1]), "conf": conf}
    sources = [files(quick_path / where / "sources") for where in ("query", "restored")]
    assert sources[0] == sources[1]
    assert sorted(path.name for path in (quick_path / "restored" / "commits").iterdir()) == [
        f"{batch - 2}",
        f"{batch - 1}",
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sources/0/9", b"v1\n"),
        ("sources/0/1", None),
        ("offsets/1", None),
        ("commits/2", b"v1\n{}"),
        ("state/0/_metadata/metadata", None),
    ],
)
def test_what_a_restore_refuses_is_found_when_a_savepoint_is_verified(
    name: str, content: bytes | None, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 1, operators=(1,))
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    path = quick_path / "taken" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises((FormatError, NotFoundError)):
        savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"))
    capsys.readouterr()
    assert main(["savepoint", "verify", str(quick_path / "taken")]) == 1
    assert f"{path}" in capsys.readouterr().out


@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_state_that_may_be_left_alone_still_may_when_its_checkpoint_is_moved(kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    first, taken = str(quick_path / "first"), str(quick_path / "taken")
    savepoints.savepoint(query.location, first)
    assert not (quick_path / "first" / ALLOWED).exists()
    savepoints.restore(first, str(quick_path / "0"), allow_non_restored_state=True)
    savepoints.restore(str(quick_path / "0"), str(quick_path / "1"), parallelism=3)
    savepoints.savepoint(str(quick_path / "1"), taken, kind=kind)
    savepoints.restore(taken, str(quick_path / "2"))
    for each in ("0", "1", "2"):
        assert (quick_path / each / ALLOWED).is_file(), each
    (quick_path / "taken" / ALLOWED).unlink()
    with pytest.raises(NotFoundError, match="is missing: the savepoint was taken with it"):
        savepoints.restore(taken, str(quick_path / "3"))
    assert main(["savepoint", "verify", taken]) == 1


@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_what_a_query_keeps_about_idle_inputs_goes_along(kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,))
    newest = query.version - 1
    kept = {batch: b'v1\n{"inputs":[%d]}' % batch for batch in (newest - 1, newest, newest + 1)}
    for batch, content in kept.items():
        query.place.put(f"{WATERMARKS_FOLDER}/{batch}", content)
    taken = str(quick_path / "taken")
    savepoints.savepoint(query.location, taken, kind=kind)
    savepoints.restore(taken, str(quick_path / "restored"), parallelism=3)
    savepoints.restore(str(quick_path / "restored"), str(quick_path / "rescaled"), parallelism=2)
    for each in ("taken", "restored", "rescaled"):
        folder = quick_path / each / WATERMARKS_FOLDER
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {str(newest): kept[newest]}, each
    (quick_path / "taken" / WATERMARKS_FOLDER / str(newest)).write_bytes(kept[newest - 1])
    with pytest.raises(FormatError, match="it has changed since the savepoint was taken"):
        savepoints.restore(taken, str(quick_path / "another"))
    assert main(["savepoint", "delete", taken]) == 0
    assert not (quick_path / "taken").exists() or not files(quick_path / "taken")


def test_an_unfinished_savepoint_of_a_query_with_idle_inputs_is_deleted(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,))
    query.place.put(f"{WATERMARKS_FOLDER}/{query.version - 1}", b'v1\n{"inputs":[]}')
    taken = quick_path / "taken"
    savepoints.savepoint(query.location, str(taken))
    (taken / SAVEPOINT_NAME).unlink()
    (taken / "metadata").unlink()
    (taken / UNFINISHED_NAME).write_bytes(b"0123 %d" % query.version)
    assert main(["savepoint", "delete", str(taken)]) == 0


def test_a_canonical_savepoint_is_named_when_it_is_taken_for_a_checkpoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "taken"), kind="canonical")
    with pytest.raises(InvalidInputError, match="is a canonical savepoint"):
        Checkpoint(str(quick_path / "taken"), parse({}))
