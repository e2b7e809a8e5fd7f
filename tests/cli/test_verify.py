"""``verify`` reads all of a version, of a checkpoint that is damaged or in use, too, and tells what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from pyspark_ckpt.cli import checkpoints
from pyspark_ckpt.state_store.blobs import Blob, BlobPlace, MeteredPlace, Traffic
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.verification import VERIFY_ATTEMPTS, verify_newest, verify_version
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from tests.cli.commands import NOW, VERSIONS, arguments, collected, run
from tests.labs.lab import QUERY, Lab, damage


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
    place = checkpoint.find_place(identity)
    meanwhile = Meanwhile(place.bare, ".snapshot", [retain])
    checkpoint._places[identity] = StorePlace(meanwhile, place.packs, Traffic())
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
