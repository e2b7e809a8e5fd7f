"""Checkpoints of Spark's own providers become checkpoints of this store, without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.moving import adopt
from pyspark_ckpt.offline.reading import open_state
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF
from tests.offline.adopting.written import FORMS, read_rows


@pytest.mark.parametrize("parallelism", [None, 1, 5])
def test_all_forms_become_the_same_state(parallelism: int | None, checkpoints: Path, tmp_path: Path) -> None:
    done = {form: adopt(checkpoints / form, tmp_path / form, parallelism) for form in FORMS if form != "rocksdb"}
    first, *others = (read_rows(tmp_path / form) for form in done)
    assert len(first) == done["hdfs"].states[0].digest.rows == 22
    assert all(rows == first for rows in others)
    assert len({each.states for each in done.values()}) == 1
    for form, each in done.items():
        assert (each.version, each.partitions) == (12, parallelism or 3)
        assert (tmp_path / form / "commits" / "11").exists()
        offsets = json.loads((tmp_path / form / "offsets" / "11").read_text().splitlines()[1])
        assert offsets["conf"][PROVIDER_CONF] == PROVIDER_CLASS
        assert offsets["conf"]["spark.sql.shuffle.partitions"] == str(parallelism or 3)
        assert main(["checkpoint", "verify", str(tmp_path / form)]) == 0


def test_the_old_checkpoint_is_not_changed(checkpoints: Path, tmp_path: Path) -> None:
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()}

    before = content()
    for form in (*FORMS, "join-4", "processor"):
        adopt(checkpoints / form, tmp_path / form)
    assert content() == before


def test_every_state_of_a_store_is_moved(checkpoints: Path, tmp_path: Path) -> None:
    for name in ("join-4", "processor"):
        adopt(checkpoints / name, tmp_path / name, 4)
    with open_state(tmp_path / "processor", operator=0, state="ids") as state:
        ids = state.to_arrow()
    assert ids.num_rows > len(set(ids["key"].combine_chunks().field("user").to_pylist())) > 1
    with open_state(tmp_path / "join-4", operator=0, state="left-keyWithTsToValues") as state:
        assert state.to_arrow().num_rows == 11


def test_an_interrupted_move_is_finished_by_the_same_call(checkpoints: Path, tmp_path: Path) -> None:
    expected = adopt(checkpoints / "changelog", tmp_path / "whole", 4)
    changelog = checkpoints / "changelog" / "state" / "0" / "1" / "12.zip"
    content = changelog.read_bytes()
    changelog.write_bytes(content[:-40])
    with pytest.raises(FormatError, match=r"12\.zip is damaged.*An unfinished restore is left"):
        adopt(checkpoints / "changelog", tmp_path / "target", 4)
    assert not (tmp_path / "target" / "commits").exists()
    with pytest.raises(InvalidInputError, match="to 4 partitions"):
        adopt(checkpoints / "hdfs", tmp_path / "target", 4)
    changelog.write_bytes(content)
    assert adopt(checkpoints / "changelog", tmp_path / "target", 4).states == expected.states
    assert read_rows(tmp_path / "target") == read_rows(tmp_path / "whole")


def test_what_cannot_be_moved_is_refused_by_name(checkpoints: Path, tmp_path: Path) -> None:
    adopt(checkpoints / "hdfs", tmp_path / "ours")
    copy = tmp_path / "copy"
    cases: list[tuple[dict[str, str | None], str]] = [
        ({PROVIDER_CONF: PROVIDER_CLASS}, "in pyspark-ckpt already"),
        ({PROVIDER_CONF: "com.other.Provider"}, r"in com\.other\.Provider, which cannot be read"),
        ({"spark.sql.streaming.stateStore.encodingFormat": "thrift"}, "encodingFormat=thrift"),
    ]
    for conf, said in cases:
        shutil.copytree(checkpoints / "hdfs", copy)
        log = copy / "offsets" / "11"
        version, entry, *rest = log.read_text().split("\n")
        changed = json.loads(entry)
        changed["conf"] = {key: value for key, value in {**changed["conf"], **conf}.items() if value is not None}
        log.write_text("\n".join([version, json.dumps(changed), *rest]))
        with pytest.raises(InvalidInputError, match=said):
            adopt(copy, tmp_path / "never")
        assert not (tmp_path / "never").exists()
        shutil.rmtree(copy)


def test_lists_in_tables_of_a_format_that_is_not_read_are_refused_before_anything_is_written(
    checkpoints: Path, tmp_path: Path
) -> None:
    for name in ("join-4", "changelog"):
        shutil.copytree(checkpoints / name, tmp_path / name)
        for log in (tmp_path / name / "offsets").iterdir():
            conf = '"spark.sql.streaming.stateStore.rocksdb.formatVersion":'
            log.write_text(log.read_text().replace(f'{conf}"5"', f'{conf}"6"'))
    with pytest.raises(InvalidInputError, match=r"formatVersion=6, and has keys with several values"):
        adopt(tmp_path / "join-4", tmp_path / "never")
    assert not (tmp_path / "never").exists()
    assert adopt(tmp_path / "changelog", tmp_path / "ours").version == 12  # RocksDB reads single values


@pytest.mark.parametrize("form", ["hdfs", "changelog"])
def test_rows_without_the_checksums_that_they_should_have_are_not_moved(
    form: str, checkpoints: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoints / form, tmp_path / "copy")
    log = tmp_path / "copy" / "offsets" / "11"
    conf = '"spark.sql.streaming.stateStore.rowChecksum.enabled":'
    log.write_text(log.read_text().replace(f'{conf}"false"', f'{conf}"true"'))
    with pytest.raises(FormatError, match=r"the checksum of 4 of 4 rows is wrong|within the head of a checksum"):
        adopt(tmp_path / "copy", tmp_path / "target")


def test_rows_in_a_wrong_partition_are_refused(checkpoints: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / "hdfs", copy)
    first, second = copy / "state" / "0" / "0", copy / "state" / "0" / "1"
    for name in ("12.delta", "11.delta", "11.snapshot", "10.snapshot"):
        (second / name).unlink(missing_ok=True)
    for path in first.glob("1[0-2].*"):
        shutil.copy(path, second)
    with pytest.raises(FormatError, match=r"partition 1.* rows belong to other partitions by the hash of their keys"):
        adopt(copy, tmp_path / "target")


def test_a_missing_file_is_named(checkpoints: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / "hdfs", copy)
    (copy / "state" / "0" / "2" / "12.delta").unlink()
    with pytest.raises(NotFoundError, match=r"state/0/2/12\.delta is missing, but version 12"):
        adopt(copy, tmp_path / "target")
