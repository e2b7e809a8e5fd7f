"""The command line on checkpoints as they are left by queries, and on damaged ones."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli import checkpoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import Blob, BlobPlace, LocalPlace, MeteredPlace, Traffic
from pyspark_ckpt.state_store.blobs.s3.place import S3Place
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.verification import VERIFY_ATTEMPTS, verify_newest, verify_version
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.retention import retention
from pyspark_ckpt.state_store.retention.collector import Collector
from pyspark_ckpt.state_store.retention.pins import LEFT_S, Pin
from tests.conftest import MakeLab
from tests.labs.lab import QUERY, Lab, damage, row_key
from tests.services.s3_server import S3Service

VERSIONS = 5


def made(lab: Lab) -> Lab:
    """Five versions of one store with snapshots of the second and the fourth, and Spark's own files."""
    operator = lab.checkpoint / "state" / "0" / "_metadata" / "metadata"
    operator.parent.mkdir(parents=True)
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}]
    info = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}, "stateStoreInfo": stores}
    operator.write_text("v1\n" + json.dumps(info))
    lab.name_query()
    for batch, commit_id in enumerate(lab.grow_with_snapshots(VERSIONS)):
        log_batch(lab, batch, [commit_id])
    lab.server.settled()
    return lab


def log_batch(lab: Lab, batch: int, ids: list[str]) -> None:
    """Spark's entries of a batch, when it was planned and when it was committed."""
    planned = lab.checkpoint / "offsets" / str(batch)
    planned.parent.mkdir(exist_ok=True)
    planned.write_text('v1\n{"conf":{"spark.sql.shuffle.partitions":"1"}}\n0')
    lab.log_commit(batch, ids)


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "folder"))


@pytest.fixture
def lab(make_lab: MakeLab, kind: str, request: pytest.FixtureRequest) -> Lab:
    options = {}
    if kind == "s3":
        service: S3Service = request.getfixturevalue("s3")
        options = {"remote": service.new_folder(), **service.options}
    lab = make_lab(**options)
    lab.partition = 0
    return made(lab)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["checkpoint", *arguments])
    written = capsys.readouterr()
    return code, written.out + written.err


def test_list_counts_versions_and_snapshots(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "list", str(lab.checkpoint))
    assert code == 0
    assert f"query {QUERY}, version {VERSIONS}" in text
    assert "operator 0: stateStoreSave" in text
    code, text = run(capsys, "list", str(lab.checkpoint), "--json")
    (store,) = json.loads(text)["stores"]
    assert (store["first_version"], store["last_version"], store["deltas"], store["snapshots"]) == (1, 5, 5, 2)
    assert store["lag"] == 1


def test_inspect_shows_lineage_and_key_groups(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "inspect", str(lab.checkpoint), "--lineage", "--key-groups")
    assert code == 0
    snapshot, delta = max(lab.objects(".snapshot")), max(lab.objects(".delta"))
    assert f"snapshot 4 ({snapshot[21:29]})  {VERSIONS} ({delta[21:29]})\n" in text
    code, text = run(capsys, "inspect", str(lab.checkpoint), "--lineage", "--key-groups", "--json")
    (store,) = json.loads(text)["stores"]
    counts = store["rows_by_key_groups"]
    assert (len(counts), sum(counts.values())) == (32, VERSIONS)
    hashes = [int.from_bytes(row_key(1, f"key-{version}")[2:6], "big") for version in range(1, VERSIONS + 1)]
    assert counts["0..1023"] == sum(value < 1 << 27 for value in hashes)
    assert store["lineage"] == [
        {"kind": "snapshot", "version": 4, "commit_id": snapshot[21:53]},
        {"kind": "delta", "version": VERSIONS, "commit_id": delta[21:53]},
    ]


def test_an_operator_with_column_families_is_found_by_its_newest_metadata(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    first = lab.checkpoint / "state" / "0" / "_metadata" / "metadata"
    content = first.read_text().replace("v1", "v2", 1)
    first.unlink()
    (first.parent / "v2").mkdir()
    for batch in (9, 10):
        (first.parent / "v2" / str(batch)).write_text(content.replace("stateStoreSave", f"join {batch}"))
    code, text = run(capsys, "list", str(lab.checkpoint))
    assert (code, "operator 0: join 10" in text) == (0, True), text


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "list", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} is not a checkpoint of a query" in text
    code, text = run(capsys, "list", str(tmp_path), "-o", "s3Endpont=x")
    assert code == 2
    assert "Did you mean 's3Endpoint'?" in text


def arguments(lab: Lab) -> list[str]:
    return [str(lab.checkpoint), *(f"--option={key}={value}" for key, value in lab.options.items())]


@pytest.mark.parametrize("kind", ["folder", "s3"], indirect=True)
def test_inspect_shows_states_and_rows(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "inspect", *arguments(lab))
    assert code == 0
    assert "operator 0: stateStoreSave" in text
    assert "█" in text
    code, text = run(capsys, "inspect", *arguments(lab), "--json", "--version", "3")
    (store,) = json.loads(text)["stores"]
    assert (store["rows"], [state["state"] for state in store["states"]]) == (3, ["default"])


@pytest.mark.parametrize("kind", ["folder", "s3"], indirect=True)
def test_verify_reads_all_of_a_version(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    for version in range(1, VERSIONS + 1):
        code, text = run(capsys, "verify", *arguments(lab), "--version", str(version))
        rows = "1 row;" if version == 1 else f"{version} rows;"
        assert (code, f"1 store, {rows}" in text, "all right" in text) == (0, True, True), text


def test_a_version_that_is_not_committed_is_refused(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    (lab.checkpoint / "commits" / str(VERSIONS - 1)).unlink()
    for command in ("inspect", "verify"):
        for version in (VERSIONS, -1, 99):
            code, text = run(capsys, command, str(lab.checkpoint), "--version", str(version))
            assert (code, f"no version {version}: the newest committed one is 4" in text) == (2, True), text


def test_nothing_is_wrong_with_a_query_before_its_first_batch(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    for entry in (*(lab.checkpoint / "commits").iterdir(), *(lab.checkpoint / "offsets").glob("[1-9]")):
        entry.unlink()
    for entry in (*lab.remote.glob("*.delta"), *lab.remote.glob("*.snapshot")):
        if not entry.name.startswith(f"{1:020}"):
            entry.unlink()
    for command in ("list", "inspect", "verify"):
        code, text = run(capsys, command, str(lab.checkpoint))
        assert (code, text.splitlines()[0]) == (0, f"query {QUERY}, no batch is committed yet")
    code, text = run(capsys, "verify", str(lab.checkpoint), "--json")
    read = {"query_files": 2, "source_files": 0, "operator_files": 1}
    nothing = {"query_id": QUERY, "version": 0, **read, "problems": [], "stores": []}
    assert (code, json.loads(text)) == (0, nothing)
    code, text = run(capsys, "verify", str(lab.checkpoint), "--version", "1")
    assert (code, "no version 1: no batch is committed yet" in text) == (2, True), text


@pytest.mark.parametrize("also_lost", ["offsets", ".delta", None])
def test_a_lost_commit_log_is_a_problem(also_lost: str | None, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lost = [*(lab.checkpoint / "commits").iterdir()]
    if also_lost == "offsets":
        lost += (lab.checkpoint / "offsets").iterdir()
    if also_lost == ".delta":
        lost += [*lab.remote.glob("*.delta"), *lab.remote.glob("*.snapshot")]
    for entry in lost:
        entry.unlink()
    code, text = run(capsys, "verify", str(lab.checkpoint))
    assert (code, "no batch is committed yet" in text) == (1, False), text
    assert (f"state of version {VERSIONS}: the commit log is lost" in text) == (also_lost != ".delta")
    assert (f"commits/{VERSIONS - 2} is missing" in text) == (also_lost != "offsets")
    code, told = run(capsys, "verify", str(lab.checkpoint), "--json")
    assert (code, len(json.loads(told)["problems"])) == (1, 2 if also_lost is None else 1)
    there = f"batch {VERSIONS - 1} was planned" if also_lost == ".delta" else f"there is state of version {VERSIONS}"
    for command in ("list", "inspect", "gc"):
        code, text = run(capsys, command, str(lab.checkpoint))
        assert (code, f"the commit log has no batch, but {there}: `pyspark-ckpt checkpoint verify " in text) == (
            0,
            True,
        )
        assert "no batch is committed yet" not in text


@pytest.mark.parametrize("damaged", ["commits/4", "state/0/_metadata/metadata"])
def test_verify_tells_of_damaged_logs_as_of_other_problems(
    damaged: str, lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab.checkpoint / damaged).write_text("")
    code, text = run(capsys, "verify", str(lab.checkpoint))
    assert (code, f"WRONG: {lab.checkpoint}/{damaged} " in text) == (1, True), text
    code, text = run(capsys, "verify", str(lab.checkpoint), "--json")
    told = json.loads(text)
    assert (code, told["version"], told["stores"]) == (1, VERSIONS, [])
    assert "No state was read" in told["problems"][0]
    assert told["query_files"] == (3 if damaged.startswith("commits") else 4)


def test_verify_of_a_query_that_commits_meanwhile_reads_what_is_committed(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = {path: path.read_bytes() for path in (lab.checkpoint / "commits").iterdir()}
    for path in logged:
        path.unlink()
    checkpoint = Checkpoint(str(lab.checkpoint), parse({}))
    assert checkpoint.newest_version == 0
    for path, entry in logged.items():
        path.write_bytes(entry)
    code = checkpoints.verify(checkpoint, None, as_json=False)
    assert (code, f"version {VERSIONS}: 1 store, {VERSIONS} rows" in capsys.readouterr().out) == (0, True)


def test_verify_goes_on_with_the_newest_version_when_retention_has_passed_its_own(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = lab.checkpoint / "commits"
    logged = {path: path.read_bytes() for path in commits.iterdir() if int(path.name) >= 2}
    for path in logged:
        path.unlink()
    checkpoint = Checkpoint(str(lab.checkpoint), parse({}))
    assert checkpoint.newest_version == 2
    for path, entry in logged.items():
        path.write_bytes(entry)
    assert collected(lab, capsys, *NOW)[0] == 0
    code = checkpoints.verify(checkpoint, None, as_json=False)
    assert (code, f"version {VERSIONS}: 1 store, {VERSIONS} rows" in capsys.readouterr().out) == (0, True)


class Meanwhile(MeteredPlace):
    """A place in which one thing after the other happens, each when something is listed or read in it next."""

    def __init__(self, place: BlobPlace, when: str, acts: Iterable[Callable[[], object]]) -> None:
        """``when``: what the name of the folder or the object ends with."""
        super().__init__(place, Traffic())
        self._when, self._acts = when, iter(acts)

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        self._act(folder)
        return super().list(folder, prefix, start)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self._act(name)
        return super().get(name, start, end)

    def _act(self, name: str) -> None:
        if name.endswith(self._when):
            next(self._acts, lambda: None)()


def test_verify_finds_nothing_wrong_when_retention_moves_to_another_snapshot(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = max(lab.remote.glob("*.snapshot"))
    hidden = newer.rename(lab.checkpoint / newer.name)

    def retain() -> None:
        hidden.rename(newer)
        assert collected(lab, capsys, *NOW)[1]["deleted"] > 0

    checkpoint = Checkpoint(str(lab.checkpoint), parse({}))
    ((_, identity),) = checkpoint.stores()
    checkpoint._places[identity] = Meanwhile(checkpoint.find_place(identity), ".snapshot", [retain])
    found = verify_version(checkpoint, identity, VERSIONS)
    assert (found.rows, found.problems) == (VERSIONS, ())
    assert not hidden.exists()


def test_verify_says_so_when_each_version_has_gone_before_it_was_read(lab: Lab) -> None:
    checkpoint = Checkpoint(str(lab.checkpoint), parse({}))
    ((_, identity),) = checkpoint.stores()
    checkpoint.look_again()
    logged = {path: path.read_bytes() for path in (lab.checkpoint / "commits").iterdir()}
    for path in (*logged, *lab.remote.glob("*.delta"), *lab.remote.glob("*.snapshot")):
        path.unlink()
    commits = [partial(path.write_bytes, logged[path]) for path in sorted(logged)]
    checkpoint.place = Meanwhile(checkpoint.place, "commits", commits)
    found = verify_newest(checkpoint, identity)
    assert (found.version, found.rows) == (VERIFY_ATTEMPTS, 0)
    assert "version 3 (id ?) was never committed, or its objects are lost" in found.problems[0]
    assert "take a savepoint" in found.problems[1]


@pytest.mark.parametrize("suffix", [".delta", ".snapshot", ".sst"])
def test_verify_names_a_damaged_object(suffix: str, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    newest = max(lab.remote.rglob(f"*{suffix}"))
    damage(newest)
    code, text = run(capsys, "verify", str(lab.checkpoint))
    assert code == 1
    assert newest.name in text
    assert "WRONG" in text


def test_verify_names_a_missing_delta(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    max(lab.remote.glob("*.delta")).unlink()
    code, text = run(capsys, "verify", str(lab.checkpoint))
    assert code == 1
    assert "version 5" in text


def test_verify_counts_rows(lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Database.rows
    monkeypatch.setattr(Database, "rows", lambda database: list(rows(database))[:-1])
    code, text = run(capsys, "verify", str(lab.checkpoint))
    assert code == 1
    assert "state 'default' has 4 rows, but the commit says 5" in text


def collected(lab: Lab, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    """What ``gc`` keeping one version below the newest says as JSON."""
    code, text = run(capsys, "gc", str(lab.checkpoint), "--keep", "1", "--json", *more)
    return code, json.loads(text)


NOW = ("-o", "retentionGracePeriod=0")


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
    place = checkpoint.find_place(identity)
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


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pyspark-ckpt {ckpt.__version__}\n"
