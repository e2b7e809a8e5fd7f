"""A command that a message names does what it says when it is pasted into a shell, wherever its places are."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import HadoopSettings, MeteredPlace, Traffic, find_options, place_at
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.missing_state import explain_missing
from pyspark_ckpt.state_store.errors import CkptError, FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.remote import folder_in
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import Options, parse
from tests.labs.lab import QUERY
from tests.labs.saved_query import Query, stored, written
from tests.services.s3_server import S3Service


def paste(problem: CkptError, **instead: str) -> int:
    """Run the first command of a hint, with values for its placeholders; its exit code."""
    found = re.search("`pyspark-ckpt (.*?)`", problem.hint)
    assert found is not None, problem.hint
    return main([instead.get(word, word) for word in shlex.split(found[1])])


def left_half(query: Query, target: str) -> None:
    """A savepoint of the query that lacks nothing but savepoint.json."""
    savepoints.savepoint(query.location, target, options=list_options(query.options))
    place = place_at(target, query.options.s3)
    place.put("savepoint.unfinished", b"0 1")
    place.delete("savepoint.json")


def written_there(s3: S3Service, batches: int) -> Query:
    query = Query(s3.new_folder(), 1, options=parse(s3.options), operators=(2,))
    query.run(batches)
    return query


class Miscounted(Query):
    """A query whose commits say that each state has a row more than it has."""

    def _count(self, operator: int, store: str, state: str, partition: int) -> int:
        return super()._count(operator, store, state, partition) + 1


def list_options(options: Options) -> dict[str, str]:
    return options.s3.list_options() | ({"remote": options.remote} if options.remote else {})


def test_the_rest_of_a_savepoint_in_s3_is_deleted(s3: S3Service) -> None:
    query, target = written_there(s3, 1), f"{s3.new_folder()}/it's half"
    left_half(query, target)
    with pytest.raises(InvalidInputError, match="unfinished or half-deleted savepoint") as refused:
        Checkpoint(target, query.options)
    assert paste(refused.value) == 0
    assert s3.files(target) == []


def test_rows_of_a_canonical_savepoint_in_s3_are_described(s3: S3Service, capsys: pytest.CaptureFixture[str]) -> None:
    query, target = written_there(s3, 1), s3.new_folder()
    savepoints.savepoint(query.location, target, kind="canonical", options=s3.options)
    with pytest.raises(InvalidInputError, match="is a canonical savepoint") as refused:
        Checkpoint(target, query.options)
    assert paste(refused.value) == 0
    assert f"savepoint {target}: canonical" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_what_is_damaged_in_the_source_of_a_restore_is_named(
    kind: str, s3: S3Service, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A savepoint in S3, or a checkpoint here whose state is in S3; in both, commits count a row too many."""
    folder, options = s3.new_folder(), s3.options
    remote = {"remote": folder} if kind == "checkpoint" else {}
    query = Miscounted(str(quick_path / "query"), 1, operators=(2,), options=parse({**options, **remote}))
    query.run()
    restore: Any = partial(savepoints.restore, query.location, parallelism=2)
    if kind == "savepoint":
        savepoints.savepoint(query.location, folder, options=options)
        restore = partial(savepoints.restore, folder, parallelism=2)
    with pytest.raises(FormatError, match="rows, but") as refused:
        restore(str(quick_path / "new"), options=options)
    assert paste(refused.value) == 1
    assert "rows, but the commit says" in capsys.readouterr().out


def test_state_in_the_checkpoint_moves_to_the_place_of_the_session(s3: S3Service, quick_path: Path) -> None:
    query, new, remote = written(quick_path / "a query", 1, operators=(2,), batches=2), s3.new_folder(), s3.new_folder()
    options = parse({**s3.options, "remote": remote})
    identity = Identity(0, 0, "default")
    place = place_at(folder_in(remote, QUERY, identity), options.s3)
    told = explain_missing(NotFoundError("Gone."), place, query.place, identity, remote)
    assert paste(told, NEW_CHECKPOINT=new, PARTITIONS="2") == 0
    assert stored(new, options) == (2, 2, query.rows)
    assert any(key.endswith((".delta", ".snapshot")) for key in s3.files(remote))


def test_places_name_the_options_that_reach_them_and_no_secrets() -> None:
    secrets: Mapping[str, str] = {
        "fs.s3a.access.key": "SECRET-1",
        "fs.s3a.secret.key": "SECRET-2",
        "fs.s3a.session.token": "SECRET-3",
        "fs.s3a.endpoint": "http://SECRET-4:SECRET-5@host:9000",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.encryption.algorithm": "SSE-KMS",
        "fs.s3a.encryption.key": "key",
    }
    place = place_at("s3a://bucket/folder", parse({"s3Region": "there"}).s3, HadoopSettings(secrets))
    options = {
        "s3Endpoint": "http://host:9000",
        "s3Region": "there",
        "s3Addressing": "path",
        "s3Encryption": "aws:kms",
        "s3KmsKeyId": "key",
    }
    assert find_options(place) == find_options(MeteredPlace(place, Traffic())) == options
    parse(options)
    assert find_options(place_at("s3://bucket/folder"), place_at(os.sep)) == {}
