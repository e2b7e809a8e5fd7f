"""State that is kept apart from its checkpoint: in another folder, in S3 and in HDFS."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore.client import BaseClient

from pyspark_ckpt.state_store.blobs import LocalPlace, place_at
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.store_contents import count_objects
from pyspark_ckpt.state_store.format.remote import find_place
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import parse
from tests.conftest import MakeLab
from tests.labs.lab import QUERY, CallError, Lab, expected
from tests.services.hdfs_service import HdfsService
from tests.services.s3_server import S3Service


def started(make_lab: MakeLab, **options: str) -> Lab:
    """A lab whose query has an id, as Spark writes it."""
    lab = make_lab(retentionGracePeriod="0", **options)
    lab.name_query()
    return lab


@pytest.mark.parametrize("kind", ["folder", "s3", "s3a", "hdfs"])
def test_every_version_restores_from_the_remote_place_when_the_machine_is_lost(
    kind: str, make_lab: MakeLab, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    options, s3a = {"remote": str(tmp_path / "elsewhere")}, dict[str, str]()
    if kind == "s3a":
        bucket: S3Service = request.getfixturevalue("s3")
        options, s3a = {"remote": bucket.new_folder().replace("s3:", "s3a:")}, bucket.s3a
    elif kind != "folder":
        service: S3Service | HdfsService = request.getfixturevalue(kind)
        options = {"remote": service.new_folder(), **service.options}
    lab = started(make_lab, **options)
    lab.s3a = s3a
    ids = lab.grow_with_snapshots(5)
    for version in range(1, 6):
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(), version, ids[version - 1]).rows == expected(version)
    assert lab.objects() == ["remote.json"], "the checkpoint knows where the state is, and has none of it"
    place = msgspec.json.decode((lab.remote / "remote.json").read_bytes())["place"]
    assert place == f"{options['remote']}/{QUERY}/state/0/3"


def test_a_percent_sign_in_the_name_of_a_remote_place_is_kept(make_lab: MakeLab, s3: S3Service) -> None:
    folder = f"{s3.new_folder()}/day=1 10%3A00"
    lab = started(make_lab, remote=folder, **s3.options)
    lab.grow(lab.open(), 1)
    key, owner = sorted(s3.files(folder), key=lambda key: key.endswith("/owner.json"))
    assert owner == f"{folder.removeprefix(f's3://{s3.bucket}/')}/{QUERY}/owner.json"
    assert key.startswith(f"{folder.removeprefix(f's3://{s3.bucket}/')}/{QUERY}/state/0/3/")
    assert b"/day=1 10%253A00/" in (lab.remote / "remote.json").read_bytes(), "as format 1 has it"
    checkpoint = Checkpoint(str(lab.checkpoint), parse(lab.options))
    assert count_objects(checkpoint, Identity(0, 3, "default")).deltas == 1


@pytest.mark.parametrize(("remote", "scheme"), [("s3a://bucket/here", "s3a"), ("s3://bucket/here", "s3"), ("", "s3")])
def test_a_pointer_of_s3_leads_to_a_remote_place_of_s3a(remote: str, scheme: str, tmp_path: Path) -> None:
    """They were once all written so."""
    who, checkpoint = Identity(0, 3, "default"), LocalPlace(tmp_path)
    checkpoint.put("state/0/3/remote.json", b'{"place": "s3://bucket/here/%25/state/0/3"}')
    assert find_place(checkpoint, who, place_at, remote).url == f"{scheme}://bucket/here/%/state/0/3"


@pytest.mark.parametrize("where", ["remote", "s3a checkpoint"])
@pytest.mark.parametrize(("fmt", "each"), [(2, 1), (1, 2)])
def test_a_commit_is_one_request_and_one_more_for_the_winner_of_format_1(
    fmt: int, each: int, where: str, make_lab: MakeLab, s3: S3Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "remote":
        lab = started(make_lab, remote=s3.new_folder(), **s3.options)
        handle = lab.open(fmt=fmt)
    else:
        lab, root = make_lab(), s3.new_folder().replace("s3:", "s3a:")
        lab.s3a = s3.s3a
        handle = lab.open(fmt=fmt, checkpoint_root=root, state_dir=f"{root}/state/0/3")
    (commit_id,) = lab.grow(handle, 1)
    requests: Counter[str] = Counter()
    original = BaseClient._make_api_call

    def counted(client: BaseClient, name: str, arguments: Any) -> Any:  # noqa: ANN401
        requests[name] += 1
        return original(client, name, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", counted)
    lab.grow(handle, 10, 1, commit_id)
    assert requests == {"PutObject": 10 * each}


@pytest.mark.parametrize(("fmt", "closed"), [(2, False), (1, False), (1, True)])
def test_a_query_that_is_restarted_with_new_keys_uses_them(
    fmt: int, *, closed: bool, make_lab: MakeLab, s3: S3Service
) -> None:
    """The handles of the run before are closed later than the next run begins."""
    root = s3.new_folder().replace("s3:", "s3a:")
    place: dict[str, Any] = {"fmt": fmt, "checkpoint_root": root, "state_dir": f"{root}/state/0/3"}
    lab = make_lab()
    lab.s3a = {**s3.s3a, **s3.s3a_keys, "fs.s3a.secret.key": "expired"}
    old = lab.open("run-1", **place)
    with pytest.raises(CallError, match=r"SignatureDoesNotMatch|AccessDenied"):
        lab.grow(old, 1)
    if closed:
        lab.server.call("close", handle=old)
    lab.s3a = {**s3.s3a, **s3.s3a_keys}
    lab.grow(lab.open("run-2", **place), 2)


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_retention_deletes_what_nobody_needs(kind: str, make_lab: MakeLab, request: pytest.FixtureRequest) -> None:
    service: S3Service | HdfsService = request.getfixturevalue(kind)
    folder = service.new_folder()
    lab = started(make_lab, remote=folder, **service.options)
    ids = lab.grow_with_snapshots(8)

    def versions() -> set[int]:
        keys = [key for key in service.files(folder) if not key.endswith("/owner.json")]
        names = [key.rpartition("/")[2] for key in keys if "/sst/" not in key]
        return {int(name[:20]) for name in names}

    assert versions() == set(range(1, 9))
    handle = lab.open(keep=2)
    lab.begin(handle, 8, ids[-1]).abort()
    lab.server.call("cleanup", handle=handle)
    lab.server.settled()
    assert min(versions()) > 1
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 8, ids[-1]).rows == expected(8)


def test_the_query_that_a_remote_place_needs_is_asked_for(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(remote=str(tmp_path / "elsewhere"))
    with pytest.raises(CallError, match="metadata does not have the id of the query") as caught:
        lab.open()
    assert caught.value.kind == "InvalidInputError"


def test_two_places_of_one_checkpoint_are_not_mixed_up(make_lab: MakeLab, tmp_path: Path) -> None:
    """A query that is restarted without the option, or with another, does not begin anew without a word."""
    lab = started(make_lab, remote=str(tmp_path / "elsewhere"))
    (commit_id,) = lab.grow(lab.open(), 1)
    others: dict[str, Any] = {"options": {"remote": str(tmp_path / "another")}}
    for more in (others, dict[str, Any](options={})):
        with pytest.raises(CallError, match=r"[Vv]ersion 1") as caught:
            lab.begin(lab.open(**more), 1, commit_id)
        assert caught.value.kind == "NotFoundError"
        assert f"{lab.remote}/remote.json says that this state is in {tmp_path}/elsewhere/" in caught.value.message
        assert f"stateStore.ckpt.remote to {tmp_path}/elsewhere in" in caught.value.hint


@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize("fmt", [1, 2])
def test_a_version_that_is_not_there_is_just_that_where_the_place_is_right(
    fmt: int, *, is_apart: bool, make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = started(make_lab, **({"remote": str(tmp_path / "elsewhere")} if is_apart else {}))
    lab.grow(lab.open(fmt=fmt), 1)
    with pytest.raises(CallError, match="never committed") as caught:
        lab.begin(lab.open(fmt=fmt), 7, "ab" * 16 if fmt == 2 else None)
    assert "remote" not in caught.value.message
