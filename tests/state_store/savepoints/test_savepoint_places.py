"""Savepoints and checkpoints in S3 and in HDFS, and from one kind of place to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from botocore.client import BaseClient

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from tests.labs.saved_query import Query, stored, written

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tests.services.hdfs_service import HdfsService
    from tests.services.s3_server import S3Service


def test_a_savepoint_in_s3_is_copied_by_the_service_and_restored_anywhere(
    s3: S3Service, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, taken, restored = written(quick_path / "query", 2), s3.new_folder(), s3.new_folder()
    parsed = parse(s3.options)
    savepoints.savepoint(query.location, taken, options=s3.options)
    copied: list[str] = []
    original = BaseClient._make_api_call

    def counted(client: BaseClient, name: str, arguments: Any) -> Any:  # noqa: ANN401
        if name == "CopyObject":
            copied.append(arguments["Key"])
        return original(client, name, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", counted)
    savepoints.restore(taken, restored, options=s3.options)
    assert copied
    assert all(key.endswith(".sst") for key in copied), "nothing that has checksums of its own inside is copied unread"
    savepoints.restore(taken, str(quick_path / "here"), parallelism=3, options=s3.options)
    savepoints.restore(restored, f"{restored}-3", parallelism=3, options=s3.options)
    assert stored(restored, parsed) == (query.version, 2, query.rows)
    assert stored(f"{restored}-3", parsed) == stored(str(quick_path / "here")) == (query.version, 3, query.rows)
    with pytest.raises(InvalidInputError, match="is not empty"):
        savepoints.savepoint(query.location, taken, options=s3.options)
    prefix = taken.partition(f"{s3.bucket}/")[2]
    s3.client.create_multipart_upload(Bucket=s3.bucket, Key=f"{prefix}/state/0/0/left/half.sst")
    assert delete(taken, parsed) > 0
    assert s3.files(taken) == []
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=s3.bucket, Prefix=prefix)


@pytest.mark.in_turn
@pytest.mark.parametrize("service_name", ["s3", "hdfs"])
def test_a_canonical_savepoint_is_taken_restored_and_deleted_there(
    service_name: str, request: pytest.FixtureRequest, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service: S3Service | HdfsService = request.getfixturevalue(service_name)
    query, folder = written(quick_path / "query", 2, operators=(2,), batches=2), service.new_folder()
    options, parsed = service.options, parse(service.options)
    savepoints.savepoint(query.location, f"{folder}/taken", kind="canonical", options=options)
    assert sum(path.endswith(".parquet") for path in service.files(folder)) == 1
    assert not [path for path in service.files(folder) if path.endswith((".sst", ".snapshot", ".delta"))]
    arguments = [argument for key, value in options.items() for argument in ("-o", f"{key}={value}")]
    assert main(["savepoint", "verify", f"{folder}/taken", *arguments]) == 0
    assert "all right" in capsys.readouterr().out
    savepoints.restore(f"{folder}/taken", f"{folder}/there", parallelism=1, options=options)
    savepoints.restore(f"{folder}/taken", str(quick_path / "here"), parallelism=3, options=options)
    assert stored(f"{folder}/there", parsed) == (query.version, 1, query.rows)
    assert stored(str(quick_path / "here")) == (query.version, 3, query.rows)
    assert delete(f"{folder}/taken", parsed) > 0
    assert [path for path in service.files(folder) if "/taken/" in path] == []


def test_state_in_s3_is_apart_from_its_checkpoint_before_and_after(s3: S3Service, quick_path: Path) -> None:
    old, new = ({"remote": s3.new_folder(), **s3.options} for _ in range(2))
    query = Query(str(quick_path / "query"), 2, options=parse(old), operators=(0, 2))
    query.run(2, snapshots=True)
    savepoints.savepoint(query.location, str(quick_path / "taken"), options=old)
    before = s3.files(old["remote"])
    with pytest.raises(InvalidInputError, match=r"belongs to the checkpoint .*, whose query has the same id"):
        savepoints.restore(str(quick_path / "taken"), str(quick_path / "refused"), options=old)
    savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), options=new)
    savepoints.restore(str(quick_path / "restored"), str(quick_path / "rescaled"), parallelism=3, options=s3.options)
    assert s3.files(old["remote"]) == before
    assert stored(str(quick_path / "taken")) == (query.version, 2, query.rows)
    assert stored(str(quick_path / "restored"), parse(s3.options)) == (query.version, 2, query.rows)
    assert stored(str(quick_path / "rescaled")) == (query.version, 3, query.rows)


def test_damage_in_s3_fails_a_rescaling(s3: S3Service, quick_path: Path) -> None:
    query, taken = written(quick_path / "query", 1, operators=(0,), batches=2), s3.new_folder()
    savepoints.savepoint(query.location, taken, options=s3.options)
    key = next(key for key in s3.files(taken) if key.endswith(".delta"))
    content = s3.client.get_object(Bucket=s3.bucket, Key=key)["Body"].read()
    s3.client.put_object(Bucket=s3.bucket, Key=key, Body=content[:-200] + b"x" + content[-199:])
    for partitions in (1, 2):
        with pytest.raises(FormatError, match=key.rpartition("/")[2]):
            savepoints.restore(taken, f"{taken}-{partitions}", parallelism=partitions, options=s3.options)


def test_a_savepoint_goes_to_hdfs_and_a_checkpoint_is_made_of_it_there(hdfs: HdfsService, quick_path: Path) -> None:
    query, folder = written(quick_path / "query", 1, operators=(2,), batches=2), hdfs.new_folder()
    savepoints.savepoint(query.location, f"{folder}/taken")
    savepoints.restore(f"{folder}/taken", f"{folder}/restored", parallelism=2)
    assert stored(f"{folder}/restored") == (query.version, 2, query.rows)
    savepoints.restore(f"{folder}/taken", str(quick_path / "here"), claim="claim")
    assert stored(str(quick_path / "here")) == (query.version, 1, query.rows)
    assert [path for path in hdfs.files(folder) if "/taken/" in path] == []
