"""No savepoint or checkpoint is made inside another one, or around it; no link is taken for the folder it leads to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import LocalPlace, Traffic, place_at
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.nesting import MAX_FOLDERS_ABOVE, is_within, refuse_inside_another
from tests.faults.permissions import as_nobody
from tests.labs.lab import QUERY
from tests.labs.saved_query import Query, files, written
from tests.services.s3_server import S3Service


def interrupted_restore(query: Query, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target of a restore that was killed while it moved state."""
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_logs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            savepoints.restore(query.location, str(target), parallelism=2)


OUTER = {
    "checkpoint": "the checkpoint of a query",
    "native": "a savepoint",
    "canonical": "a savepoint",
    "unfinished savepoint": "an unfinished or half-deleted savepoint",
    "unfinished restore": "the target of an unfinished restore",
}


def make(outer: str, folder: Path, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the folder in which, or around which, something else is to be made."""
    if outer == "checkpoint":
        written(folder, 1, operators=(1,), batches=1, seed=1)
    elif outer in ("native", "canonical"):
        savepoints.savepoint(query.location, str(folder), kind="native" if outer == "native" else "canonical")
    elif outer == "unfinished savepoint":
        LocalPlace(folder).put("savepoint.unfinished", b"")
    else:
        interrupted_restore(query, folder, monkeypatch)


def acts(query: Query, saved: Path, target: Path) -> Iterator[Callable[[], object]]:
    """All that makes something in ``target``."""
    yield lambda: savepoints.savepoint(query.location, str(target))
    yield lambda: savepoints.restore(str(saved), str(target))
    yield lambda: savepoints.restore(query.location, str(target), parallelism=2)


@pytest.mark.parametrize("outer", OUTER)
def test_no_target_lies_inside_of_another_checkpoint_or_savepoint(
    outer: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query, saved = written(quick_path / "query", 1, operators=(2,), batches=1), quick_path / "saved"
    savepoints.savepoint(query.location, str(saved))
    folder = quick_path / "outer"
    make(outer, folder, query, monkeypatch)
    (quick_path / "link").symlink_to(folder)
    before = files(quick_path)
    for inner in (folder / "sub", folder / "state" / "0", quick_path / "link" / "deep" / "er"):
        for act in acts(query, saved, inner):
            with pytest.raises(InvalidInputError, match=f"is inside {folder}, which is {OUTER[outer]}") as refused:
                act()
            assert refused.value.message.startswith(f"{inner} ")
            assert f"such as one next to {folder}" in refused.value.hint
    assert main(["checkpoint", "rescale", query.location, str(folder / "sub"), "-n", "2", "--dry-run", "--quick"]) == 2
    assert f"is inside {folder}" in capsys.readouterr().err
    assert files(quick_path) == before


@pytest.mark.parametrize("outer", OUTER)
def test_a_target_that_holds_a_checkpoint_or_a_savepoint_names_it_and_does_not_say_to_delete_it(
    outer: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved = written(quick_path / "query", 1, operators=(2,), batches=1), quick_path / "saved"
    savepoints.savepoint(query.location, str(saved))
    folder = quick_path / "around" / "below" / "inner"
    make(outer, folder, query, monkeypatch)
    before = files(quick_path)
    for act in acts(query, saved, quick_path / "around"):
        with pytest.raises(InvalidInputError, match="is not empty") as refused:
            act()
        assert refused.value.message == f"{quick_path / 'around'} is not empty: it has {OUTER[outer]} in {folder}."
        remove = f"pyspark-ckpt savepoint delete {quote(str(folder))}"
        assert ("delete" in refused.value.hint) == (remove in refused.value.hint) == (outer == "unfinished savepoint")
    assert files(quick_path) == before


def test_a_folder_above_that_only_looks_like_a_checkpoint_is_none(quick_path: Path) -> None:
    """Other tables have a folder, and other programs a file, of the name "metadata"."""
    query = written(quick_path / "query", 1, operators=(1,), batches=1)
    (quick_path / "table" / "metadata").mkdir(parents=True)
    (quick_path / "table" / "more").mkdir()
    (quick_path / "table" / "more" / "metadata").write_text("mine")
    savepoints.savepoint(query.location, str(quick_path / "table" / "more" / "taken"))


def test_a_folder_above_that_may_not_be_listed_is_left_out(quick_path: Path) -> None:
    query, shared = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "shared"
    (shared / "mine").mkdir(parents=True)
    shared.chmod(0o711)
    with as_nobody(quick_path):
        refuse_inside_another(LocalPlace(shared / "mine" / "taken"), Workplace(parse({})), "a savepoint")
    LocalPlace(shared / "mine").put("savepoint.json", b"{}")
    (shared / "mine").chmod(0o755)
    with (
        as_nobody(quick_path),
        pytest.raises(InvalidInputError, match=f"is inside {shared}/mine, which is a savepoint"),
    ):
        refuse_inside_another(LocalPlace(shared / "mine" / "taken"), Workplace(parse({})), "a savepoint")
    shared.chmod(0o755)
    savepoints.savepoint(query.location, str(shared / "taken"))


def test_each_folder_above_in_s3_costs_two_requests(s3: S3Service, traffic: Traffic) -> None:
    outer, options = s3.new_folder(), parse(s3.options)
    place_at(outer, options.s3).put("savepoint.unfinished", b"")
    place = place_at(f"{outer}/a/b/c", options.s3)
    traffic.take()
    with pytest.raises(InvalidInputError, match=f"is inside {outer}, which is an unfinished"):
        refuse_inside_another(place, Workplace(options), "a checkpoint")
    asked = traffic.take()
    assert asked["list_requests"] <= 2 * 4
    assert asked["read_requests"] == 0
    refuse_inside_another(place_at(f"{s3.new_folder()}{'/x' * 100}", options.s3), Workplace(options), "a checkpoint")
    assert 0 < traffic.take()["list_requests"] <= 2 * MAX_FOLDERS_ABOVE


def test_a_link_to_a_savepoint_is_not_deleted_for_it(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query, saved, link = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "a", quick_path / "b"
    savepoints.savepoint(query.location, str(saved))
    link.symlink_to(saved)
    before = files(quick_path)
    for act in (
        lambda: delete(str(link), parse({})),
        lambda: delete(f"file://{link}/", parse({})),
        lambda: savepoints.restore(str(link), str(quick_path / "restored"), claim="claim"),
    ):
        with pytest.raises(InvalidInputError, match=f"{link} is a link to {saved}: nothing was deleted") as refused:
            act()
        assert f"name {saved}" in refused.value.hint
    assert main(["savepoint", "delete", str(link)]) == 2
    assert f"is a link to {saved}" in capsys.readouterr().err
    assert files(quick_path) == before
    savepoints.restore(str(link), str(quick_path / "restored"))
    shutil.copytree(saved, quick_path / "elsewhere" / "a")
    (quick_path / "linked").symlink_to(quick_path / "elsewhere")
    assert delete(str(quick_path / "linked" / "a"), parse({})) > 0, "only the folder itself must not be a link"
    assert delete(str(saved), parse({})) > 0


@pytest.mark.parametrize(
    "form",
    [
        "{}/taken",
        "{}/state/taken",
        "{}",
        "{}/",
        "file:{}/taken",
        "file://{}//taken/",
        "{}/x/../taken",
        "{}/../link/taken",
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_a_savepoint_inside_of_the_checkpoint_that_it_is_of_is_refused(
    form: str,
    apart: bool,  # noqa: FBT001
    quick_path: Path,
) -> None:
    options = {"remote": str(quick_path / "apart")} if apart else {}
    query = written(quick_path / "query", 2, operators=(1,), batches=1, remote=options.get("remote", ""))
    outer = quick_path / "apart" / QUERY if apart else Path(query.location)
    (outer.parent / "link").symlink_to(outer)
    before = files(quick_path)
    with pytest.raises(InvalidInputError):
        savepoints.savepoint(query.location, form.format(outer), options=options)
    assert files(quick_path) == before


def test_a_savepoint_that_would_hold_its_checkpoint_is_refused(quick_path: Path) -> None:
    query = written(quick_path / "all" / "query", 2, operators=(1,), batches=1)
    before = files(quick_path)
    with pytest.raises(InvalidInputError, match="query is inside"):
        savepoints.savepoint(query.location, str(quick_path / "all"))
    assert files(quick_path) == before


def test_a_savepoint_is_refused_when_another_name_hides_that_it_is_inside(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as two name services of one HDFS, or a folder that is mounted twice."""
    query = written(quick_path / "query", 2, operators=(1,), batches=1)
    before = files(quick_path)
    monkeypatch.setattr("pyspark_ckpt.state_store.savepoints.creation.refuse_nested", lambda *_: None)
    with pytest.raises(InvalidInputError, match=r"is inside .*: it is saved/taken/savepoint.unfinished there"):
        savepoints.savepoint(query.location, f"{query.location}/saved/taken")
    assert files(quick_path) == before


@pytest.mark.parametrize(
    ("inner", "outer", "is_so"),
    [
        ("s3a://bucket/ck/taken", "s3://bucket/ck", True),
        ("s3n://bucket/ck/", "s3a://bucket/ck", True),
        ("s3://bucket/checkpoint", "s3://bucket/check", False),
        ("s3://other/ck/taken", "s3://bucket/ck", False),
        ("file:/tmp/ck/taken", "/tmp/ck", True),
        ("/tmp/ck/../taken", "/tmp/ck", False),
        ("/tmp/other/../ck/taken", "file:///tmp/ck/", True),
    ],
)
def test_a_folder_is_inside_of_another_by_any_of_its_names(inner: str, outer: str, is_so: bool) -> None:  # noqa: FBT001
    assert is_within(place_at(inner), place_at(outer).url) == is_so
