"""Checkpoints of this store become checkpoints of Spark's own providers, without Spark."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.moving import adopt, hand_back
from pyspark_ckpt.offline.adopting.source import PROVIDERS
from pyspark_ckpt.offline.adopting.stores import Provider
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError
from pyspark_ckpt.state_store.format.names import PROVIDER_CONF
from pyspark_ckpt.state_store.savepoints.restoring.request import ProvenState
from tests.labs.saved_query import written
from tests.offline.adopting.written import FORMS

OLDER = ("aggregation", "aggregation of all", "groups", "join", "limit", "session windows")
CODEC = "spark.sql.streaming.stateStore.compression.codec"


def known(states: tuple[ProvenState, ...]) -> list[ProvenState]:
    """States with rows: Spark names those without only if it has ever used them."""
    return sorted((each for each in states if each.digest.rows), key=lambda each: (each.store, each.name))


@pytest.mark.in_turn
@pytest.mark.parametrize("provider", ["rocksdb", "hdfs"])
def test_state_that_moves_in_out_and_in_again_is_the_same(
    provider: Provider, checkpoints: Path, older_checkpoints: Path, tmp_path: Path
) -> None:
    sources = [checkpoints / form for form in FORMS] + [older_checkpoints / provider / name for name in OLDER]
    sources += [checkpoints / name for name in ("join-4", "processor")] if provider == "rocksdb" else []
    for source in sources:
        ours, handed, again = (tmp_path / where / source.name for where in ("ours", "handed", "again"))
        adopted = adopt(source, ours)
        done = hand_back(ours, handed, provider)
        assert known(done.states) == known(adopted.states)
        assert known(adopt(handed, again, 4).states) == known(adopted.states)
        batch = done.version - 1
        assert (handed / "commits" / str(batch)).read_bytes().startswith(b"v1\n")
        assert b"stateUniqueIds" not in (handed / "commits" / str(batch)).read_bytes()
        confs = json.loads((handed / "offsets" / str(batch)).read_text().splitlines()[1])["conf"]
        assert PROVIDERS[confs[PROVIDER_CONF]] == provider
        assert confs[CODEC] == "lz4"


def test_a_checkpoint_of_a_provider_of_sparks_own_needs_no_hand_back(checkpoints: Path, tmp_path: Path) -> None:
    for name, provider in (("rocksdb", "RocksDBStateStoreProvider"), ("hdfs", "HDFSBackedStateStoreProvider")):
        with pytest.raises(InvalidInputError, match=f"the query already runs with {provider}, ") as refused:
            hand_back(checkpoints / name, tmp_path / "handed")
        assert refused.value.hint.startswith("Start the query there as it is.")
    assert not (tmp_path / "handed").exists()


def test_a_move_that_is_repeated_is_called_what_it_is(checkpoints: Path, tmp_path: Path) -> None:
    adopt(checkpoints / "rocksdb", tmp_path / "ours")
    with pytest.raises(InvalidInputError, match="this adoption has already finished") as refused:
        adopt(checkpoints / "rocksdb", tmp_path / "ours")
    assert "For another adoption, name a new folder." in refused.value.hint
    hand_back(tmp_path / "ours", tmp_path / "handed")
    with pytest.raises(InvalidInputError, match="is not empty: ") as refused:
        hand_back(tmp_path / "ours", tmp_path / "handed")
    assert "hand-back" in str(refused.value)


def test_a_database_says_how_many_rows_it_has_as_spark_does(checkpoints: Path, tmp_path: Path) -> None:
    def read_counts(checkpoint: Path, version: int) -> list[tuple[int, int]]:
        found = []
        for partition in range(3):
            with zipfile.ZipFile(checkpoint / "state" / "0" / str(partition) / f"{version}.zip") as archive:
                metadata = json.loads(archive.read("metadata").partition(b"\n")[2])
                found.append((metadata["numKeys"], metadata["numInternalKeys"]))
        return found

    for name, version in (("rocksdb", 6), ("processor", 1)):
        adopt(checkpoints / name, tmp_path / "ours" / name)
        hand_back(tmp_path / "ours" / name, tmp_path / "handed" / name)
        assert read_counts(tmp_path / "handed" / name, version) == read_counts(checkpoints / name, version)


def test_an_interrupted_move_is_finished_by_the_same_call(checkpoints: Path, tmp_path: Path) -> None:
    adopted = adopt(checkpoints / "hdfs", tmp_path / "ours")
    table = next((tmp_path / "ours" / "state" / "0" / "1").rglob("*.sst"))
    content = table.read_bytes()
    table.write_bytes(content[:-40])
    with pytest.raises(CkptError, match="An unfinished restore is left"):
        hand_back(tmp_path / "ours", tmp_path / "target", "hdfs")
    assert not (tmp_path / "target" / "commits").exists()
    with pytest.raises(InvalidInputError, match="to 3 partitions of HDFSBackedStateStoreProvider, and this is another"):
        hand_back(tmp_path / "ours", tmp_path / "target", "rocksdb")
    table.write_bytes(content)
    assert hand_back(tmp_path / "ours", tmp_path / "target", "hdfs").states == adopted.states
    assert adopt(tmp_path / "target", tmp_path / "again").states == adopted.states


def test_a_keyed_operator_is_refused(tmp_path: Path) -> None:
    query = written(tmp_path / "query", 2, batches=2)
    with pytest.raises(InvalidInputError, match=r"is a keyed operator: Spark has none"):
        hand_back(query.location, tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_what_cannot_be_moved_is_refused_by_name(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adopt(checkpoints / "processor", tmp_path / "ours")
    never = tmp_path / "never"
    with pytest.raises(InvalidInputError, match=r"has several states in a store.* needs `provider` 'rocksdb'"):
        hand_back(tmp_path / "ours", never, "hdfs")
    with pytest.raises(InvalidInputError, match="`provider` must be one of"):
        hand_back(tmp_path / "ours", never, "flink")  # type: ignore[arg-type]
    shutil.rmtree(tmp_path / "ours" / "commits")
    assert main(["checkpoint", "hand-back", str(tmp_path / "ours"), str(never)]) == 2
    assert "no batch of the query has been committed yet" in capsys.readouterr().err
    assert not never.exists()


def test_the_command_explains_and_does_it(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adopt(checkpoints / "hdfs", tmp_path / "ours")
    call = ["checkpoint", "hand-back", str(tmp_path / "ours"), str(tmp_path / "target"), "--provider", "hdfs"]
    assert main([*call, "--dry-run"]) == 0
    assert "rows are converted" in capsys.readouterr().out
    assert not (tmp_path / "target").exists()
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["states"][0]["rows"] == 22
