"""Damage and losses, in savepoints and in checkpoints that they are taken of: all of it is named, none is passed on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
import xxhash

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.manifest import decode
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint
from tests.labs.saved_query import Query, stored, written

KINDS: tuple[Kind, ...] = ("native", "canonical")


def objects_of(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and "_ckpt" not in path.parts)


def damages(path: Path) -> Iterator[str]:
    """Have a file damaged in each way, and mended in the end."""
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for how, content in (("flipped", bytes(changed)), ("cut", whole[: len(whole) * 2 // 3]), ("lost", None)):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        yield how
    path.write_bytes(whole)


def names(path: Path, told: str) -> bool:
    """Whether an error says which object it is about: by its name, or the store and the version that it is of."""
    if path.suffix in (".delta", ".snapshot"):
        return path.name in told or (f"version {int(path.name[:20])} " in told and "operator " in told)
    if path.parent.name == "commits" and "the commit log names" in told:
        return True
    alone = ("metadata", "savepoint.json")
    return f"{path.parent.name}/{path.name}" in told or (path.name in alone and path.name in told)


@pytest.mark.parametrize("kind", KINDS)
def test_no_checkpoint_is_made_of_a_savepoint_with_any_damage(kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(0, 1) if kind == "native" else (1,), batches=2)
    query.plan()
    saved = quick_path / "taken"
    savepoints.savepoint(query.location, str(saved), kind=kind)
    for number, path in enumerate(objects_of(saved)):
        for how in damages(path):
            if (kind, path.name, how) == ("native", "savepoint.json", "lost"):
                continue  # a checkpoint is left
            for partitions in (1, 2):
                target = quick_path / f"{number}-{how}-{partitions}"
                with pytest.raises((FormatError, InvalidInputError, NotFoundError)) as refused:
                    savepoints.restore(str(saved), str(target), parallelism=partitions)
                assert names(path, refused.value.message), f"{how} {path}: {refused.value.message}"
                if path.suffix in ("", ".json"):  # else it has state
                    assert not target.exists(), f"{how} {path} is refused before anything is written"
                with pytest.raises(InvalidInputError, match=r"is not a checkpoint|does not exist"):
                    Checkpoint(str(target), parse({}))
    savepoints.restore(str(saved), str(quick_path / "restored"), parallelism=2)
    assert stored(str(quick_path / "restored")) == (query.version, 2, query.rows)


def test_a_native_savepoint_that_has_lost_its_description_is_restored_as_a_checkpoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(0, 1), batches=2)
    query.plan()
    saved = quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    (saved / "savepoint.json").unlink()
    savepoints.restore(str(saved), str(quick_path / "restored"), parallelism=2)
    assert stored(str(quick_path / "restored")) == (query.version, 2, query.rows)
    _flip(next(saved.glob("state/1/0/*.delta")))
    with pytest.raises(FormatError):
        savepoints.restore(str(saved), str(quick_path / "damaged"), parallelism=2)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", ["{}", None])
def test_verify_tells_of_a_damaged_metadata_as_of_other_problems(
    kind: Kind, content: str | None, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, saved = written(quick_path / "query", 1, operators=(1,), batches=2), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved), kind=kind)
    (saved / "metadata").unlink()
    if content is not None:
        (saved / "metadata").write_text(content)
    assert main(["savepoint", "verify", str(saved)]) == 1
    assert f"WRONG: {saved}/metadata " in capsys.readouterr().out
    assert main(["savepoint", "verify", str(saved), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert f"{saved}/metadata " in problem


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 1'])
def test_verify_tells_of_a_damaged_description_in_the_form_of_all_problems(
    content: bytes, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, saved = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    assert main(["savepoint", "verify", str(saved), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out).keys()
    (saved / "savepoint.json").write_bytes(content)
    assert main(["savepoint", "verify", str(saved)]) == 1
    assert f"WRONG: {saved}/savepoint.json " in capsys.readouterr().out
    assert main(["savepoint", "verify", str(saved), "--json"]) == 1
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found.keys(), found["place"], told.err) == (fields, str(saved), "")
    (problem,) = found["problems"]
    assert f"{saved}/savepoint.json " in problem


def test_a_savepoint_of_a_damaged_checkpoint_holds_all_or_is_none(quick_path: Path) -> None:
    query = Query(str(quick_path / "query"), 1, operators=(1,))
    for each in range(3):
        query.run()
        if each < 2:
            query.snapshot(Identity(0, 0, "default"))
    refused, survived = [], []
    for number, path in enumerate(objects_of(Path(query.location))):
        for how in damages(path):
            if how == ("cut" if "state" in path.parts else "flipped"):  # Spark's files have no checksums
                continue
            target = quick_path / f"{number}-{how}"
            try:
                savepoints.savepoint(query.location, str(target))
            except (FormatError, InvalidInputError, NotFoundError) as problem:
                refused.append((how, path, problem.message))
                with pytest.raises(InvalidInputError):
                    Savepoint(str(target), parse({}))
                continue
            if (how, path.parent.name, path.name) == ("lost", "commits", "2"):
                assert stored(str(target))[0] == 2, "Spark itself would do the last batch again"
                continue
            survived.append((how, path.suffix))
            assert stored(str(target)) == (query.version, 1, query.rows), f"{how} {path}"
    assert {path.suffix for _, path, _ in refused} >= {".delta", ""}
    assert {how for how, suffix in survived if suffix == ".snapshot"} == {"flipped", "lost"}, "older ones do"
    assert {how for how, suffix in survived if suffix == ".sst"} == {"flipped", "lost"}
    for how, path, told in refused:
        assert names(path, told), f"{how} {path}: {told}"


@pytest.mark.parametrize("lost", ["state/0/_metadata/metadata", "state/1/_metadata/metadata"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_an_operator_whose_metadata_is_lost_is_not_left_out(
    lost: str, checkpoint_format: int, quick_path: Path
) -> None:
    query = written(quick_path / "query", 1, operators=(0, 1), batches=1, checkpoint_format=checkpoint_format)
    Path(query.location, lost).unlink()
    with pytest.raises(FormatError, match=f"{lost.removesuffix('/metadata')} does not say"):
        savepoints.savepoint(query.location, str(quick_path / "taken"))
    with pytest.raises(FormatError, match=f"{lost.removesuffix('/metadata')} does not say"):
        savepoints.restore(query.location, str(quick_path / "restored"), parallelism=2)


@pytest.mark.parametrize("lost", ["state/0/_metadata", "state/0", "state"])
@pytest.mark.parametrize("command", ["list", "inspect", "verify", "gc"])
def test_a_checkpoint_whose_operators_are_lost_is_not_all_right(
    command: str, lost: str, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 1, operators=(0,), batches=1, checkpoint_format=2)
    shutil.rmtree(Path(query.location, lost))
    assert main(["checkpoint", command, query.location]) == 1
    told = capsys.readouterr()
    assert "there is state of operator 0" in (told.out if command == "verify" else told.err)


def stored_damaged(folder: Path) -> Path:
    """A table file of a snapshot that was damaged before it was stored: its checksums are right."""
    (path, *_) = sorted(folder.rglob("*.snapshot"))
    manifest = decode(path.read_bytes(), str(path))
    (file, *_) = manifest.objects().values()
    stored = path.parent / str(file.object_name)
    content = bytearray(stored.read_bytes())
    content[len(content) // 2] ^= 1
    stored.write_bytes(content)
    digests = {"sha256": sha256(content).hexdigest(), "xxh3": xxhash.xxh3_128_hexdigest(bytes(content))}
    files = tuple(msgspec.structs.replace(each, **digests) if each == file else each for each in manifest.files)
    path.write_bytes(msgspec.structs.replace(manifest, files=files).encode())
    return stored


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KINDS)
def test_no_savepoint_has_what_was_stored_damaged(kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=3)
    query.plan()
    for identity in query.identities():
        query.snapshot(identity)
    saved, restored = quick_path / "taken", quick_path / "restored"
    first = savepoints.savepoint(query.location, str(quick_path / "first"), kind="native", digests=True)
    damaged = stored_damaged(Path(query.location))
    # Of an older snapshot, and deltas.
    taken = savepoints.savepoint(query.location, str(saved), kind=kind, digests=True)
    assert not list(saved.rglob(damaged.name))
    savepoints.restore(str(saved), str(restored), parallelism=2)
    assert taken.digests_of(1, "default") == first.digests_of(1, "default")


def test_verification_names_the_object_that_was_stored_damaged(quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=2)
    query.plan()
    for identity in query.identities():
        query.snapshot(identity)
    saved = quick_path / "taken"
    savepoints.savepoint(query.location, str(saved), kind="native")
    damaged = stored_damaged(saved)
    savepoint = Savepoint(str(saved), parse({}))
    _, problems, _ = savepoint.verify_stores()
    assert any(str(damaged) in problem for problem in problems), problems


@pytest.mark.parametrize("lost", [f"{2:020d}-*", f"{1:020d}-*"])
def test_what_a_savepoint_has_lost_is_copied_again_and_not_looked_for_elsewhere(
    lost: str, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retention deletes nothing in a savepoint, and a backup of the checkpoint has other files."""
    query, saved = Query(str(quick_path / "query"), 1, operators=(1,)), quick_path / "taken"
    query.run(2)
    savepoints.savepoint(query.location, str(saved))
    for path in (saved / "state" / "0" / "0").glob(lost):
        path.unlink()
    commands = [
        ["savepoint", "restore", str(saved), str(quick_path / "restored")],
        ["savepoint", "verify", str(saved)],
    ]
    for command in [*commands, *([["state", "read", str(saved)]] if lost.startswith(f"{2:020d}") else [])]:
        assert main(command) == 1, command
        told = "".join(capsys.readouterr())
        assert "has version " in told
        assert "Retention" not in told
        assert "backup" not in told
        assert command[1] == "verify" or "Copy the savepoint again from its original, or take another." in told
