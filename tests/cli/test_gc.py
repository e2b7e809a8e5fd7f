"""``gc`` deletes what its dry run names, waits for what is young, and goes on beside a query that runs."""

from __future__ import annotations

import os
import time
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from pyspark_ckpt.cli import checkpoints
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.s3.place import S3Place
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.retention import retention
from pyspark_ckpt.state_store.retention.collector import Collector
from pyspark_ckpt.state_store.retention.pins import LEFT_S, Pin
from tests.cli.commands import NOW, VERSIONS, collected, log_batch, run
from tests.labs.lab import Lab


@pytest.mark.parametrize("kind", ["folder", "s3"], indirect=True)
def test_gc_deletes_what_its_dry_run_has_named(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    reach = [part for key, value in lab.options.items() if key != "remote" for part in ("-o", f"{key}={value}")]
    code, planned = collected(lab, capsys, "--dry-run", *NOW, *reach)
    (store,) = planned["stores"]
    names = [blob["name"] for blob in store["garbage"]]
    assert code == 0
    assert [name.rpartition(".")[2] for name in names] == ["snapshot", *["delta"] * 4], "all below the second snapshot"
    assert planned["deleted"] == 0
    code, done = collected(lab, capsys, *NOW, *reach)
    assert (code, done["deleted"]) == (0, len(names))
    code, left = collected(lab, capsys, "--dry-run", *NOW, *reach)
    assert left["stores"][0]["garbage"] == []
    assert run(capsys, "verify", str(lab.checkpoint), *reach)[0] == 0
    code, text = run(capsys, "verify", str(lab.checkpoint), "--version", "2", *reach)
    assert (code, "retired" in text) == (1, True)


def test_gc_waits_a_grace_period_before_it_deletes_table_files(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    shared = set(lab.objects(".sst"))
    handle = lab.open()
    lab.begin(handle, VERSIONS).abort()
    store = lab.server.stores.handle(handle).store
    store.local.copies.live.database.compact()  # type: ignore[union-attr]  # live is open
    (last,) = lab.grow(handle, 1, VERSIONS)
    log_batch(lab, VERSIONS, [last])
    lab.begin(handle, VERSIONS + 1, last).abort()
    lab.server.call("snapshot", handle=handle, force=True)
    assert set(lab.objects(".sst")) > shared
    log_batch(lab, VERSIONS + 1, lab.grow(handle, 1, VERSIONS + 1, last))
    time.sleep(1.1)
    code, done = collected(lab, capsys, "-o", "retentionGracePeriod=1s")
    assert code == 0
    names = [blob["name"] for blob in done["stores"][0]["garbage"]]
    assert shared <= set(names)
    assert set(lab.objects()).isdisjoint(names)
    assert run(capsys, "verify", str(lab.checkpoint))[0] == 0


def test_gc_goes_on_when_the_query_retires_the_version_that_was_the_newest(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = lab.remote / "sst" / f"{0:064x}-{0:08x}.sst"
    stray.write_bytes(b"of no snapshot")
    handle = lab.open()
    first = Checkpoint(str(lab.checkpoint), parse({}))
    (identity,) = (identity for _, identity in first.stores())

    def run_on(seconds: float, _what: str) -> None:
        newest = first.find_commit(identity, VERSIONS)
        for commit_id in lab.grow(handle, 2, VERSIONS, newest.id):
            lab.log_commit(len(list((lab.checkpoint / "commits").iterdir())), [commit_id])
        lab.begin(handle, VERSIONS + 2, commit_id).abort()
        lab.server.call("snapshot", handle=handle, force=True)
        time.sleep(seconds)
        with closing(Collector(Checkpoint(str(lab.checkpoint), parse({})), 0, seconds)) as collector:
            assert collector.clean(identity) > 0
        with pytest.raises(NotFoundError):
            first.find_commit(identity, VERSIONS)

    monkeypatch.setattr(checkpoints, "wait", run_on)
    code, _ = collected(lab, capsys, "-o", "retentionGracePeriod=50ms")
    assert code == 0
    assert not stray.exists()


def test_gc_takes_a_newer_version_when_the_newest_is_gone_and_fails_when_there_is_none(lab: Lab) -> None:
    checkpoint = Checkpoint(str(lab.checkpoint), parse({}))
    (identity,) = (identity for _, identity in checkpoint.stores())
    newest = checkpoint.find_commit(identity, VERSIONS)
    (commit_id,) = lab.grow(lab.open(), 1, VERSIONS, newest.id)
    lab.log_commit(VERSIONS, [commit_id])
    with closing(Collector(checkpoint, 1, 0)) as collector:
        for version, each in ((VERSIONS, newest.id), (VERSIONS + 1, commit_id)):
            assert checkpoint.newest_version == version
            next(lab.remote.glob(f"*-{each}-*.delta")).unlink()
            with nullcontext() if version == VERSIONS else pytest.raises(NotFoundError):
                collector.find(identity)


def test_gc_deletes_nothing_that_is_young_or_kept(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    before = lab.objects()
    assert collected(lab, capsys)[1]["deleted"] == 0, "younger than the grace period"
    code, text = run(capsys, "gc", str(lab.checkpoint), *NOW)
    kept = f"0 objects deleted; version {VERSIONS} and up to 100 versions below it are kept\n"
    assert (code, text) == (0, kept)
    assert lab.objects() == before


@pytest.mark.parametrize("kind", ["folder", "s3"], indirect=True)
def test_a_dry_run_names_the_unfinished_uploads_that_gc_deletes(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    reach = [part for key, value in lab.options.items() if key != "remote" for part in ("-o", f"{key}={value}")]
    checkpoint = Checkpoint(str(lab.checkpoint), parse(lab.options))
    (identity,) = (identity for _, identity in checkpoint.stores())
    place = checkpoint.find_place(identity).bare
    collected(lab, capsys, *NOW, *reach)
    if isinstance(place, LocalPlace):
        left = Path(place.url) / "sst" / f".x.sst.{'0' * 32}.tmp"
        left.write_bytes(b"half")
        os.utime(left, (time.time() - 61,) * 2)
        name = f"sst/.x.sst.{'0' * 32}.tmp"
    else:
        assert isinstance(place, S3Place)
        place.client.create_multipart_upload(Bucket=place.bucket, Key=place.key("sst/x.sst"))
        name = "sst/x.sst"
        with pytest.MonkeyPatch.context() as patched:  # a minute later
            now_s, patience = S3Place._read_time, retention.UPLOAD_S
            patched.setattr(S3Place, "_read_time", lambda place, answer: now_s(place, answer) + patience)
            check_dry_run(lab, capsys, name, *NOW, *reach)
            return
    check_dry_run(lab, capsys, name, *NOW, *reach)


def check_dry_run(lab: Lab, capsys: pytest.CaptureFixture[str], name: str, *more: str) -> None:
    """A dry run names the unfinished upload and writes nothing, gc deletes it, and then there is none."""
    pin = Pin(1, time.time() - 2 * LEFT_S, "0" * 32)  # one that gc deletes
    (lab.checkpoint / pin.name).parent.mkdir(parents=True, exist_ok=True)
    (lab.checkpoint / pin.name).touch()
    before = {path: path.stat().st_mtime_ns for path in (lab.checkpoint, *lab.checkpoint.rglob("*"))}
    (planned,) = collected(lab, capsys, "--dry-run", *more)[1]["stores"]
    assert [blob["name"] for blob in planned["garbage"]] == [name]
    assert {path: path.stat().st_mtime_ns for path in (lab.checkpoint, *lab.checkpoint.rglob("*"))} == before
    assert collected(lab, capsys, *more)[1]["deleted"] == 1
    assert not (lab.checkpoint / pin.name).exists()
    assert collected(lab, capsys, "--dry-run", *more)[1]["stores"][0]["garbage"] == []


def test_gc_refuses_to_keep_nothing(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "gc", str(lab.checkpoint), "--keep", "0")
    assert code == 2
    assert "0 is not in the range x>=1" in text


def test_gc_deletes_what_a_dead_writer_of_pins_has_left(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    pins = lab.checkpoint / "_ckpt" / "pins"
    pins.mkdir(parents=True, exist_ok=True)
    dead, young, foreign = pins / f".a.pin.{1:032x}.tmp", pins / f".b.pin.{2:032x}.tmp", pins / ".of-a-user"
    for path in (dead, young, foreign):
        path.write_bytes(b"half")
    for path in (dead, foreign):
        os.utime(path, (time.time() - 2 * retention.UPLOAD_S,) * 2)
    code, planned = collected(lab, capsys, "--dry-run", *NOW)
    assert (code, [blob["name"] for blob in planned["unfinished"]]) == (0, [f"_ckpt/pins/{dead.name}"])
    assert dead.exists()
    assert collected(lab, capsys, *NOW)[0] == 0
    assert (dead.exists(), young.exists(), foreign.exists()) == (False, True, True)
