"""``checkpoint repair``: what it says of damaged logs, and that the query goes on from the batch that it names."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.repair import removal
from pyspark_ckpt.state_store.repair.damaged_checkpoint import DamagedCheckpoint
from pyspark_ckpt.state_store.repair.diagnosis import Diagnosis, diagnose
from tests.labs.lab import QUERY
from tests.labs.saved_query import Logical, Query, files, stored
from tests.services.s3_server import S3Service

FORMATS = (1, 2)
BATCHES = 8
SEEDS = range(20)


class History:
    """A query of some batches, and its rows after each of them; one more batch is planned."""

    def __init__(self, location: str, checkpoint_format: int = 2, **options: Any) -> None:  # noqa: ANN401
        given = parse(options)
        self.query = Query(location, 2, options=given, operators=(0, 2), format=checkpoint_format, packed=0)
        self.rows: list[Logical] = []
        self.settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        for batch in range(BATCHES):
            self.query.run(snapshots=batch % 3 == 1)
            self.rows.append(copy.deepcopy(self.query.rows))
        self.query.plan()

    @property
    def place(self) -> BlobPlace:
        return self.query.place

    def empty(self, *names: str) -> None:
        """Leave of these files what a loss of power does."""
        for name in names:
            self.place.put(name, b"")

    def repair(self, *more: str) -> int:
        return main(["checkpoint", "repair", self.query.location, *self.settings, *more])

    def diagnose(self) -> Diagnosis:
        return diagnose(DamagedCheckpoint(self.query.location, self.query.options), reads_all=True)

    def require_at(self, batch: int) -> None:
        """The checkpoint has the state of ``batch``, and is all right."""
        assert main(["checkpoint", "verify", self.query.location, *self.settings]) == 0
        version, _, rows = stored(self.query.location, self.query.options)
        assert version == batch + 1
        assert {key: each for key, each in rows.items() if each} == {
            key: each for key, each in self.rows[batch].items() if each
        }


@pytest.fixture
def history(quick_path: Path) -> History:
    return History(str(quick_path / "query"))


def test_a_checkpoint_that_is_whole_is_left_as_it_is(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(Path(history.query.location))
    assert history.repair("--apply") == 0
    told = capsys.readouterr().out
    assert "can continue exactly once after batch 7. Batch 8 runs again with the rows" in told
    assert "nothing to repair" in told
    assert files(Path(history.query.location)) == before


@pytest.mark.parametrize("version", FORMATS)
def test_the_query_goes_back_before_the_entries_that_a_loss_of_power_has_emptied(
    version: int, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = History(str(quick_path / "query"), version)
    history.empty(*(f"offsets/{each}" for each in (6, 7, 8)), *(f"commits/{each}" for each in (5, 6, 7)))
    before = files(Path(history.query.location))
    assert history.repair() == 1
    told = capsys.readouterr().out
    assert "commits/5 is empty." in told
    assert "exactly once after batch 4. Batch 5 runs again with the rows that were planned for it." in told
    assert "batches 6 to 8 is lost" in told
    assert files(Path(history.query.location)) == before, "nothing is changed"
    assert history.repair("--apply") == 0
    history.require_at(4)
    (kept,) = Path(history.query.location, "_ckpt/removed").iterdir()
    assert set(files(kept)) == {
        *(f"offsets/{each}" for each in (6, 7, 8)),
        *(f"commits/{each}" for each in (5, 6, 7)),
    }
    assert history.repair("--apply") == 0
    assert "Moved" not in capsys.readouterr().out.rpartition("nothing to repair")[2]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("lost", "batch", "again"),
    [
        (["commits/7"], 6, [7]),
        (["commits/6", "commits/7"], 5, [6]),
        (["offsets/8"], 7, []),
        (["offsets/7"], 6, []),
        (["offsets/6"], 5, []),
        (["offsets/7", "offsets/8"], 6, []),
        (["sources/0/8"], 7, []),
        (["sources/0/7"], 6, []),
    ],
    ids=str,
)
def test_entries_that_somebody_has_deleted_are_named_and_gone_back_before(
    lost: list[str], batch: int, again: list[int], history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in lost:
        history.place.delete(name)
    assert history.repair("--apply", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["continues_after_batch"] == batch
    assert told["runs_again"] == again
    history.require_at(batch)


@pytest.mark.parametrize("content", [b"", b"v1", b"v1\n", b'v1\n{"batchWatermarkMs":0', bytes(400)], ids=repr)
def test_an_entry_that_is_cut_is_damaged(content: bytes, history: History) -> None:
    history.place.put("offsets/7", content)
    found = history.diagnose()
    assert [each for each in found.problems if "/offsets/7 " in each]
    assert found.continuation is not None
    assert found.continuation.batch == 6


def test_offsets_that_lack_a_source_are_damaged(history: History) -> None:
    whole = history.place.get("offsets/7")
    for batch in range(8):
        history.place.put(f"offsets/{batch}", history.place.get(f"offsets/{batch}") + b'\n{"t":{"0":5}}')
    history.place.put("offsets/7", whole)
    assert "more or fewer sources" in "".join(history.diagnose().problems)


@pytest.mark.parametrize("version", FORMATS)
def test_the_query_goes_back_before_state_that_is_lost(
    version: int, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = History(str(quick_path / "query"), version)
    folder = Path(history.query.location, store_folder(Identity(0, 1, "left")))
    for path in sorted(folder.iterdir()):
        if path.name.startswith(("00000000000000000007", "00000000000000000008")):
            path.unlink()
    assert history.repair("--apply") == 0
    told = capsys.readouterr().out
    assert "batch 7: operator 0, partition 1, store 'left'" in told
    assert "batch 6: operator 0, partition 1, store 'left'" in told
    history.require_at(5)


def test_state_whose_bytes_are_damaged_is_found_unless_the_look_is_quick(history: History) -> None:
    place = history.place
    damaged = [each.name for each in place.walk("state/0/0/left") if f"/{BATCHES:020d}-" in each.name]
    assert damaged
    for name in damaged:
        content = bytearray(place.get(name))
        content[len(content) // 3] ^= 1
        place.put(name, bytes(content))
    found = history.diagnose()
    assert found.continuation is not None
    assert found.continuation.batch < 7


@pytest.mark.parametrize("version", FORMATS)
def test_damage_that_a_restore_gets_around_costs_no_batch(
    version: int, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = History(str(quick_path / "query"), version)
    damaged = [each.name for each in history.place.walk("state") if "/sst/" in each.name]
    assert damaged
    history.empty(*damaged)
    assert history.repair() == 0
    told = capsys.readouterr().out
    assert "an older base and more deltas are used instead" in told
    assert history.diagnose().cut_anew == range(0)
    version_after, _, rows = stored(history.query.location, history.query.options)
    assert (version_after, rows) == (BATCHES, history.rows[-1])


def test_a_name_with_a_number_far_away_is_moved_away(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.place.put(f"offsets/{2**62}", b"v1")
    history.place.put(f"commits/{2**61}", b"v1")
    assert history.repair("--apply", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cut_anew"] == [9, 2**62]
    assert f"{history.query.location}/offsets/9 to {2**62 - 1} are missing." in told["problems"]
    history.require_at(7)


def test_the_id_of_a_query_is_found_where_its_state_is(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History(str(quick_path / "query"), remote=str(quick_path / "remote"))
    history.empty("metadata")
    assert history.repair() == 1
    assert f"metadata would get the query id {QUERY}" in capsys.readouterr().out
    assert history.repair("--apply") == 0
    assert json.loads(history.place.get("metadata")) == {"id": QUERY}
    history.require_at(7)


def test_an_id_that_nothing_tells_is_asked_for(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.place.delete("metadata")
    Path(history.query.location, ".metadata.crc").write_bytes(b"crc\0of what was there")
    assert history.repair("--apply") == 2
    assert "Then give it as --query-id" in capsys.readouterr().err
    assert history.repair("--apply", "--query-id", "7") == 2
    assert "a UUID; got '7'" in capsys.readouterr().err
    its = "12345678-1234-1234-1234-123456789abc"
    assert history.repair("--apply", "--query-id", its) == 0
    assert json.loads(history.place.get("metadata")) == {"id": its}
    assert not Path(history.query.location, ".metadata.crc").exists()
    history.require_at(7)
    assert history.repair("--apply", "--query-id", its) == 2
    assert f"has a query id, {its}, which --query-id cannot change" in capsys.readouterr().err


def test_a_new_id_is_given_if_that_is_asked_for(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.place.delete("metadata")
    assert history.repair("--apply", "--query-id", "new") == 0
    told = capsys.readouterr().out
    assert "Wrote metadata with the query id" in told
    assert "Moved" not in told, "no file was moved"
    assert json.loads(history.place.get("metadata"))["id"] != QUERY
    history.require_at(7)


def test_a_query_that_has_committed_nothing_begins_again(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = Query(str(quick_path / "query"), 2, operators=(0,))
    query.plan()
    query.place.put("offsets/0", b"")
    assert main(["checkpoint", "repair", query.location, "--apply"]) == 0
    assert "the query begins with batch 0" in capsys.readouterr().out
    assert not query.place.list("offsets")


def test_a_checkpoint_without_any_whole_commit_is_left_to_a_backup(
    history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    history.empty(*(f"commits/{batch}" for batch in range(8)))
    before = files(Path(history.query.location))
    assert history.repair() == 1
    assert "cannot continue from these files" in capsys.readouterr().out
    assert history.repair("--apply") == 2
    assert "cannot be repaired from its own files, and was not changed" in capsys.readouterr().err
    assert files(Path(history.query.location)) == before


def test_what_operators_there_are_is_left_to_a_backup(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.empty("state/1/_metadata/metadata")
    assert history.repair() == 1
    assert "state/1/_metadata/metadata is empty." in capsys.readouterr().out
    assert history.repair("--apply") == 2


@pytest.mark.in_turn
def test_a_repair_that_was_interrupted_is_finished_by_the_next_one_and_spark_skips_no_batch_between(
    quick_path: Path,
) -> None:
    first = History(str(quick_path / "first"))
    damage = ("commits/4", "offsets/6", "commits/7", "sources/0/8")
    first.empty(*damage)
    steps = first.diagnose().removed
    assert len(steps) > 5
    for done in range(len(steps) + 1):
        history = History(str(quick_path / f"after {done}"))
        history.empty(*damage)
        for name in steps[:done]:
            history.place.delete(name)
        _require_no_batch_skipped(history.place)
        assert history.repair("--apply") == 0
        history.require_at(5)


def _require_no_batch_skipped(place: BlobPlace) -> None:
    """If Spark can read the newest entries, it plans no batch after one that the log says nothing of."""
    newest = {log: max(int(each.name.rpartition("/")[2]) for each in place.list(log)) for log in ("offsets", "commits")}
    if all(place.get(f"{log}/{batch}") for log, batch in newest.items()):
        assert newest["offsets"] <= newest["commits"] + 1


def test_a_query_that_is_started_during_a_repair_ends_it(
    history: History, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = 0

    def look(checkpoint: DamagedCheckpoint, *, reads_all: bool) -> Diagnosis:
        nonlocal looked
        looked += 1
        if looked == 2:  # the repair has its number
            assert Epochs(history.place).take_after(1, RunObject(RUN_FORMAT, "a run"))
        return diagnose(checkpoint, reads_all=reads_all)

    history.empty("offsets/8")
    with monkeypatch.context() as patch:
        patch.setattr(removal, "diagnose", look)
        assert history.repair("--apply") == 1
    assert "was started, or another call began to repair it" in capsys.readouterr().err
    assert history.place.get("offsets/8") == b""
    assert history.repair("--apply") == 0


def test_a_query_that_was_rescaled_to_another_checkpoint_is_not_repaired(
    history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    Epochs(history.place).take(RunObject(RUN_FORMAT, "a run", moves_to="/elsewhere"))
    history.empty("offsets/8")
    assert history.repair("--apply") == 2
    assert "was rescaled to /elsewhere, or was to be" in capsys.readouterr().err


def test_empty_numbers_of_runs_are_moved_away(history: History) -> None:
    Epochs(history.place).take(RunObject(RUN_FORMAT, "a run"))
    history.empty("_ckpt/runs/0000000002.run")
    assert history.repair("--apply") == 0
    assert Epochs(history.place).take(RunObject(RUN_FORMAT, "the next")) == 4


def test_a_checkpoint_in_s3_is_repaired(s3: S3Service) -> None:
    history = History(s3.new_folder(), 2, **s3.options)
    history.empty("commits/7", "offsets/8")
    assert history.repair() == 1
    assert history.repair("--apply") == 0
    history.require_at(6)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
def test_the_query_goes_on_from_the_batch_that_a_repair_names_when_entries_are_damaged_at_random(
    seed: int, quick_path: Path
) -> None:
    draw = random.Random(seed)
    history = History(str(quick_path / "query"), draw.choice(FORMATS))
    for _ in range(draw.randint(1, 5)):
        name = f"{draw.choice(('offsets', 'commits', 'sources/0'))}/{draw.randint(3, 7)}"
        content = history.place.get(name) if any(each.name == name for each in history.place.walk()) else b""
        if draw.random() < 0.3:
            history.place.delete(name)
        else:
            history.place.put(name, content[: draw.randint(0, len(content) - 2)] if len(content) > 2 else b"")
    found = history.diagnose()
    assert found.continuation is not None
    assert history.repair("--apply") == 0
    history.require_at(found.continuation.batch)
    assert history.diagnose().is_healthy


@pytest.mark.parametrize("version", FORMATS)
def test_logs_that_are_lost_are_left_to_a_backup_while_there_is_state(
    version: int, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = History(str(quick_path / "query"), version)
    for name in [each.name for log in ("offsets", "commits") for each in history.place.list(log)]:
        history.place.delete(name)
    before = files(Path(history.query.location))
    why = f"{history.query.location}/commits has no entry, but there is state of version 8: the commit log is lost"
    for command in ("repair", "verify"):
        assert main(["checkpoint", command, history.query.location]) == 1
        assert why in capsys.readouterr().out
    assert history.repair("--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["is_healthy"], told["continues_after_batch"], told["removed"]) == (False, None, [])
    assert why in told["lost"][0]
    assert history.repair("--apply") == 2
    assert files(Path(history.query.location)) == before


def test_state_of_a_first_batch_that_was_not_committed_is_no_lost_log(quick_path: Path) -> None:
    query = Query(str(quick_path / "query"), 2, operators=(0,))
    query.run()
    query.place.delete("commits/0")
    assert main(["checkpoint", "repair", query.location]) == 0
