"""Rows and digests of every state: recorded, printed, and compared wherever state goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.digests import Digest, digest
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, STATE_BYTES
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.jobs import RunHere
from pyspark_ckpt.state_store.redistribution.store_digests import DigestTask
from pyspark_ckpt.state_store.savepoints.creation import create
from pyspark_ckpt.state_store.savepoints.restoring.request import Restored
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, Kind, Savepoint
from tests.labs.saved_query import EXPIRY, SPARKS_OWN, STATES, Query, hash_for, stored, written

States = dict[tuple[int, str, str], Digest]


@pytest.fixture
def query(quick_path: Path) -> Query:
    return written(quick_path / "query", 2)


def expected(query: Query) -> States:
    """Digests of the rows that the query has given, by the definition."""
    found = {}
    for (kind, store, state), rows in query.rows.items():
        is_ordered = STATES[kind, store][state].ordered
        total = 0
        for key, value in rows.items():
            at = hash_for(kind, key).to_bytes(HASH_BYTES, "big")
            kept = key + at if is_ordered else at + key
            total += xxhash.xxh3_64_intdigest(kept + value, STATE_BYTES + len(kept))
        found[query.operators.index(kind), store, state] = digest(len(rows), total)
    assert found[2, "default", EXPIRY].rows
    return found


def proven(done: Restored) -> States:
    return {(each.operator, each.store, each.name): each.digest for each in done.states}


def shown(printed: str, states: States) -> bool:
    """Whether all of these are in what was printed, in one line each."""
    return all(
        any(
            name in line and f"{each.rows:,}" in line.split() and str(each.sum) in line for line in printed.splitlines()
        )
        for (_, _, name), each in states.items()
    )


@pytest.mark.parametrize("partitions", [2, 3])
def test_every_state_is_proven_whether_its_files_are_copied_or_not(
    partitions: int, query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    done = savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), parallelism=partitions)
    found = proven(done)
    own = found.pop(SPARKS_OWN, None)
    assert found == expected(query)
    assert (own is None) == (partitions != 2), "Spark's rows of partitions are copied, or made for other partitions"
    again = str(quick_path / "again")
    assert main(["savepoint", "restore", str(quick_path / "taken"), again, "-n", str(partitions)]) == 0
    assert shown(capsys.readouterr().out, found)


def test_a_copy_with_other_rows_is_no_checkpoint(
    query: Query, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = DigestTask.__call__

    def with_one_row_less(task: DigestTask) -> dict[str, Digest]:
        found = read(task)
        if task.when == "after" and "counts" in found:
            found["counts"] = Digest(found["counts"].rows - 1, found["counts"].sum)
        return found

    savepoints.savepoint(query.location, str(quick_path / "taken"))
    monkeypatch.setattr(DigestTask, "__call__", with_one_row_less)
    with pytest.raises(FormatError, match=r"operator 0, store 'right': state 'counts' had .* rows with the digest"):
        savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"))
    with pytest.raises(InvalidInputError, match="is not a checkpoint"):
        Checkpoint(str(quick_path / "restored"), parse({}))
    with pytest.raises(FormatError, match="state 'counts' had"):
        create(
            query.location,
            str(quick_path / "other"),
            parse({}),
            RunHere(),
            lambda _done, _all: None,
            written_by="",
            kind="native",
            digests=True,
        )
    with pytest.raises(InvalidInputError, match="is not a savepoint"):
        Savepoint(str(quick_path / "other"), parse({}))


@pytest.mark.in_turn
@pytest.mark.parametrize(("kind", "digests"), [("native", True), ("canonical", False)])
def test_recorded_digests_are_printed(
    kind: Kind, query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str], *, digests: bool
) -> None:
    taken = str(quick_path / "taken")
    more = ["--digests"] if digests else []
    assert main(["savepoint", "create", query.location, taken, "--kind", kind, *more]) == 0
    assert shown(capsys.readouterr().out, expected(query))
    assert main(["savepoint", "inspect", taken]) == 0
    assert shown(capsys.readouterr().out, expected(query))
    assert main(["savepoint", "verify", taken]) == 0
    assert shown(capsys.readouterr().out, expected(query))
    info = Savepoint(taken, parse({})).info
    of_keyed = info.digests_of(2, "default")
    assert of_keyed[EXPIRY] == expected(query)[2, "default", EXPIRY]


def test_verifying_reads_and_prints_all_digests(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = str(quick_path / "taken")
    assert main(["savepoint", "create", query.location, taken]) == 0
    assert "no digests are recorded: savepoint verify reads" in capsys.readouterr().out
    assert main(["savepoint", "verify", taken]) == 0
    assert shown(capsys.readouterr().out, expected(query))
    assert main(["savepoint", "verify", taken, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    found = {
        (each["operator"], each["store"], each["state"]): Digest(each["rows"], each["digest"])
        for each in told["states"]
    }
    found.pop(SPARKS_OWN, None)
    assert (found, told["problems"]) == (expected(query), [])


@pytest.mark.in_turn
@pytest.mark.parametrize("partitions", [2, 4])
def test_rows_that_are_not_as_recorded_are_named(
    partitions: int, query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = quick_path / "taken"
    savepoints.savepoint(query.location, str(taken), digests=True)
    info = Savepoint(str(taken), parse({})).info
    changed = msgspec.json.decode(msgspec.json.encode(info).replace(b'"sum":"0', b'"sum":"1'), type=type(info))
    (taken / NAME).write_bytes(seal(changed))
    with pytest.raises(FormatError, match=r"taken, operator 0, store 'left': state '.*' was recorded with \d+ rows"):
        savepoints.restore(str(taken), str(quick_path / "restored"), parallelism=partitions)
    assert main(["savepoint", "verify", str(taken)]) == 1
    printed = capsys.readouterr().out
    assert "WRONG: operator 2, store 'default': state 'visits/seen' was recorded with" in printed
    (taken / NAME).write_bytes(seal(info))
    savepoints.restore(str(taken), str(quick_path / "again"), parallelism=partitions)
    assert stored(str(quick_path / "again")) == (query.version, partitions, query.rows)


def test_a_digest_of_other_rows_than_are_counted_is_damage(query: Query, quick_path: Path) -> None:
    taken = quick_path / "taken"
    savepoints.savepoint(query.location, str(taken), digests=True)
    info = json.loads(msgspec.json.encode(Savepoint(str(taken), parse({})).info))
    info["operators"][0]["states"][0]["digest"]["rows"] += 1
    (taken / NAME).write_bytes(seal(info))
    with pytest.raises(FormatError, match=r"rows, and a digest of"):
        Savepoint(str(taken), parse({}))
