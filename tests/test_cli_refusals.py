"""What the command line refuses: checkpoints of others, folders that are not there, services without credentials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ckpt.cli import main as cli
from tests.labs.saved_query import Query, written
from tests.services.s3_server import S3Service, hide_credentials

HDFS_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.mark.parametrize("provider", [HDFS_PROVIDER, "com.example.Another"])
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("command", ["list", "inspect", "verify", "gc"])
def test_a_checkpoint_of_another_provider_is_named_as_such(
    command: str, provider: str, *, committed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(str(tmp_path / "query"), 2, operators=(0,))
    conf = {"spark.sql.streaming.stateStore.providerClass": provider, "spark.sql.shuffle.partitions": "2"}
    entry = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf})
    query.place.put("offsets/0", f"v1\n{entry}\n{{}}".encode())
    if committed:
        query.place.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    for more in ([], ["--json"]):
        assert cli.main(["checkpoint", command, query.location, *more]) == 2
        told = capsys.readouterr()
        assert f"the query keeps its state in {provider}, not in pyspark-ckpt" in told.err
        assert told.out == ""


@pytest.mark.parametrize("command", ["verify", "inspect", "restore"])
def test_a_checkpoint_in_the_place_of_a_savepoint_is_named_as_such(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(tmp_path / "query", 1, operators=(1,), batches=1)
    if command == "restore":  # it takes checkpoints, too
        assert cli.main(["savepoint", "restore", query.location, str(tmp_path / "new"), "--claim", "claim"]) == 2
    else:
        assert cli.main(["savepoint", command, query.location]) == 2
    told = capsys.readouterr().err
    assert f"It is the checkpoint of a query. To check it: `pyspark-ckpt checkpoint verify {query.location}`." in told


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_savepoints_of_a_folder_that_is_not_there_are_not_listed(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    for spelled in (str(missing), f"file:{missing}", f"{missing}/"):
        assert cli.main(["savepoint", "list", spelled, *more]) == 2
        assert f"{missing} does not exist" in capsys.readouterr().err
    assert cli.main(["savepoint", "list", str(empty), *more]) == 0


@pytest.mark.parametrize("below", ["", "/x", "/x/y"])
def test_a_file_or_a_circle_of_links_is_refused_as_a_folder(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(tmp_path / "query", 1, operators=(1,), batches=1)
    file, circle = tmp_path / "file", tmp_path / "circle"
    file.write_text("")
    circle.symlink_to(circle)
    for command in (["list"], ["inspect"], ["verify"], ["create", query.location]):
        assert cli.main(["savepoint", *command, f"{file}{below}"]) == 2, command
        told = capsys.readouterr().err
        assert f"{file} is a file, not a folder" in told or f"{file}{below} is not a savepoint" in told
        assert "may be repeated" not in told
    assert cli.main(["checkpoint", "list", str(file)]) == 2
    assert f"{file} is not a checkpoint of a query: it is a file." in capsys.readouterr().err
    assert cli.main(["savepoint", "list", f"{circle}{below}"]) == 2
    assert "its links lead in a circle" in capsys.readouterr().err


def test_savepoints_of_a_prefix_that_is_not_there_are_not_listed(
    s3: S3Service, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for key, value in s3.options.items() for word in ("-o", f"{key}={value}")]
    assert cli.main(["savepoint", "list", s3.new_folder(), *options]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_missing_credentials_do_not_speak_of_executors(
    s3: S3Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_credentials(monkeypatch, tmp_path)
    options = [word for key, value in s3.options.items() for word in ("-o", f"{key}={value}")]
    for command in (["checkpoint", "list"], ["savepoint", "list"]):
        call = [sys.executable, "-m", "pyspark_ckpt", *command, s3.new_folder(), *options]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "Give this process, on " in done.stderr
        assert "executor" not in done.stderr


def test_a_name_that_is_given_two_values_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, target = str(tmp_path / "saved"), str(tmp_path / "new")
    assert cli.main(["savepoint", "restore", saved, target, "--uid", "a=b", "--uid", "a=c"]) == 2
    assert "a is given twice, as 'b' and 'c'" in capsys.readouterr().err
    assert cli.main(["checkpoint", "list", saved, "-o", "placeTimeout=1", "-o", "placeTimeout=2"]) == 2
    assert "placeTimeout is given twice, as '1' and '2'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", [["checkpoint", "list"], ["checkpoint", "verify"]])
def test_a_file_is_no_checkpoint(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main([*command, str(tmp_path / "file")]) == 2
    assert f"{tmp_path}/file is not " in capsys.readouterr().err


def test_dots_in_paths_are_no_part_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(tmp_path / "query", 1, operators=(1,), batches=1)
    monkeypatch.chdir(tmp_path / "query" / "state")
    assert cli.main(["savepoint", "create", "..", "../../saved"]) == 0
    assert f"\nof {query.location}, batch" in capsys.readouterr().out
    assert (tmp_path / "saved" / "savepoint.json").exists()
    assert cli.main(["savepoint", "create", "..", "./../new"]) == 2
    assert f"{tmp_path}/query/new is inside {query.location}" in capsys.readouterr().err
    assert cli.main(["savepoint", "list", "../../saved/./../missing"]) == 2
    assert f"{tmp_path}/missing does not exist" in capsys.readouterr().err


def test_control_characters_in_paths_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "a\x1b[2Jb\nc"
    query, saved = written(odd / "query", 1, operators=(1,), batches=1), odd / "saved"
    shown = f"{tmp_path}/a\\x1b[2Jb\\nc"
    assert cli.main(["savepoint", "create", query.location, str(saved)]) == 0
    assert f"savepoint {shown}/saved: " in capsys.readouterr().out
    assert cli.main(["checkpoint", "rescale", query.location, str(odd / "new"), "-n", "2"]) == 0
    assert f"{shown}/new continues " in capsys.readouterr().out
    assert cli.main(["checkpoint", "list", str(odd)]) == 2
    assert f"{shown} is not a checkpoint" in capsys.readouterr().err
    (odd / "query" / "offsets" / "0").unlink()
    assert cli.main(["checkpoint", "verify", query.location]) == 1
    assert f"WRONG: {shown}/query/offsets" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["savepoint", "restore"], ["checkpoint", "rescale"]])
def test_quick_without_dry_run_changes_nothing(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new"
    assert cli.main([*command, str(tmp_path / "old"), str(target), "-n", "3", "--quick"]) == 2
    assert "--quick works only with --dry-run" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["checkpoint", "list"],
        ["checkpoint", "verify"],
        ["state", "read"],
        ["query", "advise"],
        ["savepoint", "inspect"],
        ["savepoint", "verify"],
        ["savepoint", "delete"],
        ["savepoint", "create"],
        ["savepoint", "restore"],
        ["checkpoint", "rescale", "-n", "2"],
        ["checkpoint", "branch"],
        ["checkpoint", "adopt"],
        ["checkpoint", "hand-back", "--provider", "rocksdb"],
    ],
    ids=" ".join,
)
def test_a_path_that_is_mistyped_does_not_exist(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    takes_target = bool({"create", "restore", "rescale", "branch", "adopt", "hand-back"}.intersection(command))
    missing, target = tmp_path / "chekpoint", tmp_path / "target"
    assert cli.main([*command, str(missing), *([str(target)] if takes_target else [])]) == 2
    assert f"{missing} does not exist" in capsys.readouterr().err
    assert not target.exists()


def test_summaries_of_commands_are_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ([], ["checkpoint"], ["savepoint"], ["state"], ["query"]):
        assert cli.main([*group, "--help"]) == 0
        assert "..." not in capsys.readouterr().out.replace("COMMAND [ARGS]...", "")
