"""Nothing that is read is executed, local files are the user's alone, and no secret gets out."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pickle
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyspark_ckpt.offline.reading
import pyspark_ckpt.operators
import pyspark_ckpt.state_store
from pyspark_ckpt.offline.reading.rows.native_rows import NativeRows
from pyspark_ckpt.offline.reading.stored_state import make_keyed_codec
from pyspark_ckpt.operators.session.worker import find_ticket
from pyspark_ckpt.state_store import options
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.database import Database, write_table_file
from pyspark_ckpt.state_store.errors import InvalidInputError, StorageError
from pyspark_ckpt.state_store.format.meta import Descriptor
from tests.labs.lab import TUNING, Lab, Server, expected
from tests.labs.session_lab import STATES, SessionLab
from tests.services.s3_server import S3Service
from tests.state_store.server.test_server import TOKEN, Connection, Process, opening

PACKAGES = [pyspark_ckpt, pyspark_ckpt.state_store, pyspark_ckpt.operators, pyspark_ckpt.offline.reading]
MODULES = sorted({path for package in PACKAGES for path in Path(str(package.__file__)).parent.rglob("*.py")})
EXECUTES = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib", "yaml", "runpy", "code"}
SENDS = "functions/sent_function.py"
"""The one module with cloudpickle: for functions of the program, which go from process to process."""
CALLS = {"eval", "exec", "compile", "__import__"}


def test_no_module_has_a_way_to_execute_what_it_reads() -> None:
    assert len(MODULES) > 50
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(each.name for each in node.names)]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in CALLS, f"{path}:{node.lineno}"
            elif isinstance(node, ast.keyword):
                assert node.arg not in ("allow_pickle", "shell"), f"{path}:{node.lineno}"
            found = {name.partition(".")[0] for name in names} & EXECUTES
            assert found <= ({"cloudpickle"} if path.as_posix().endswith(SENDS) else set()), f"{path}: {names}"


ELEMENTS = {"elementType": "double", "containsNull": True}


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["CKPT_TEST_TRAP"],)


def test_a_database_that_claims_pickled_rows_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The binding would do that, for a database of another mode than ours."""
    trap = tmp_path / "executed"
    monkeypatch.setenv("CKPT_TEST_TRAP", str(trap))
    for kind in range(8):  # whichever byte says that what follows is pickled
        write_table_file(tmp_path / f"{kind}.sst", [(bytes([kind]), bytes([kind]) + pickle.dumps(_Trap()))], TUNING)
    database = Database(tmp_path / "db", TUNING)
    database.ingest(sorted(tmp_path.glob("*.sst")))
    database.close()
    for config in ('{"raw_mode": false, "prefix_extractors": {}}', "{}", "damaged"):
        (tmp_path / "db" / "rocksdict-config.json").write_text(config)
        try:
            database = Database(tmp_path / "db", TUNING, read_only=True)
        except StorageError:  # it is not opened at all
            continue
        assert all(isinstance(value, bytes) for _, value in database.rows())
        database.close()
    assert not trap.exists()
    pickle.loads(pickle.dumps(_Trap()))  # noqa: S301 - the trap works
    assert trap.exists()


def test_a_stored_type_has_no_module_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark would, for the class of a type of the user's own."""
    trap = tmp_path / "executed"
    (tmp_path / "trap_of_a_type.py").write_text(f"open({str(trap)!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = {"type": "udt", "pyClass": "trap_of_a_type.Point", "sqlType": {"type": "array", **ELEMENTS}}
    fields = {"type": "struct", "fields": [{"name": "at", "type": kind, "nullable": True, "metadata": {}}]}
    spark = Descriptor(
        key_schema=fields, value_schema=fields, key_encoder={"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}
    )
    assert NativeRows(spark, "default", "it").fields[1].type == pa.struct([("at", pa.list_(pa.float64()))])
    stored = {"value": {"schemas": [fields], "current": 1}}
    own = Descriptor(key_schema={"n": "int64"}, value_schema=stored, key_encoder={"kind": "ValueState"})
    keyed = make_keyed_codec(own, own, "it", "it", has_life=False)
    assert keyed.fields[1].type == pa.struct([("at", pa.list_(pa.float64()))])
    assert not trap.exists()
    importlib.import_module("trap_of_a_type")  # the trap works
    assert trap.exists()


def others_may(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o077


def test_local_folders_and_what_workers_are_told_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        lab = SessionLab(tmp_path, STATES)
        batch, states = lab.begin()
        batch.at("user 1")
        states["value"].update(1)
        batch.stage()
        local = lab.lab.local_dir
        staging = Path(batch.session._ticket.staging)
        folders = [local, local / "tickets", staging, staging.parent, local / "stores", *(local / "stores").glob("*/*")]
        told = [*(local / "tickets").iterdir(), *staging.glob("*.json"), *local.rglob("*-0.json")]
        assert len(told) == 3, "a ticket, a part, and what a copy holds"
        files = [local / "server.lock", *told]
        assert [path for path in (*folders, *files) if others_may(path)] == []
        lab.commit(batch)
        lab.close()
    finally:
        os.umask(before)


def test_a_local_folder_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir(mode=0o755)
    folder.chmod(0o777)
    server = Server(folder, {})
    assert not others_may(folder)
    server.stores.shut_down()


def test_a_local_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with pytest.raises(InvalidInputError, match="belongs to the user"):
        Server(tmp_path / "local", {})


def test_copies_in_a_folder_in_which_others_could_write_are_not_used(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    ids = lab.grow(lab.open(), 2)
    lab.server.settled()
    for mode, is_kept in ((0o700, True), (0o755, True), (0o720, False), (0o777, False)):
        lab.server.die()
        planted = lab.local_dir / "stores" / "planted"
        planted.mkdir()
        lab.local_dir.chmod(mode)
        lab.server = Server(lab.local_dir, {})
        assert planted.exists() == is_kept
        assert lab.begin(lab.open(), 2, ids[-1]).rows == expected(2)
        shutil.rmtree(planted, ignore_errors=True)
    lab.server.stores.shut_down()


@pytest.fixture
def ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A ticket as a worker finds it, in the local folder of an executor."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk/blockmgr-1")
    home = tmp_path / "ckpt-0-abc"
    home.mkdir(mode=0o700)
    lab = Lab(tmp_path / "query")
    lab.server.stores.shut_down()
    lab.server = Server(home / "server", {})
    lab.server.call("begin", handle=lab.open(), version=0, id=None, attempt=7, executor="blockmgr-1")
    yield next((home / "server" / "tickets").iterdir())
    lab.server.stores.shut_down()


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_ticket_that_others_could_have_written_is_refused(level: int, mode: int, ticket: Path) -> None:
    local_dir = str(ticket.parents[3])
    assert find_ticket(7, local_dir).operator == 0
    loose = (ticket, *ticket.parents)[level]
    loose.chmod(stat.S_IMODE(loose.stat().st_mode) | mode)
    with pytest.raises(InvalidInputError, match="may be written by other users") as caught:
        find_ticket(7, local_dir)
    assert str(loose) in caught.value.message


def test_a_ticket_that_is_a_link_is_refused(ticket: Path) -> None:
    elsewhere = ticket.rename(ticket.with_name("elsewhere"))
    ticket.symlink_to(elsewhere)
    with pytest.raises(InvalidInputError, match="is a link"):
        find_ticket(7, str(ticket.parents[3]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_tickets_of_other_users_are_passed_over(ticket: Path) -> None:
    parent = ticket.parents[3]
    theirs = shutil.copytree(ticket.parents[2], parent / "ckpt-0-theirs")
    os.chown(theirs, 4711, 4711)
    (parent / "ckpt-0-link").symlink_to(theirs)
    assert find_ticket(7, str(parent)).operator == 0
    os.chown(ticket, 4711, 4711)
    with pytest.raises(InvalidInputError, match="belongs to the user 4711"):
        find_ticket(7, str(parent))


SECRET = "a-secret-that-is-wrong"  # noqa: S105 - made up


@pytest.mark.parametrize(
    "uri", [f"s3://key:{SECRET}@bucket/state", f"s3a://{SECRET}@bucket/state", f"file://{SECRET}@host/x"]
)
def test_a_place_with_credentials_in_its_uri_is_refused_without_showing_them(uri: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a user or a password") as caught:
        place_at(uri)
    assert SECRET not in str(caught.value) + caught.value.hint
    lab = Lab(tmp_path)
    answer = lab.server._dispatcher.call("open", json.dumps({**opening(tmp_path), "state_dir": uri}))
    assert "a user or a password" in answer
    assert SECRET not in answer
    lab.server.stores.shut_down()


def test_an_endpoint_with_credentials_is_refused_without_showing_them() -> None:
    with pytest.raises(InvalidInputError, match="s3Endpoint holds credentials") as caught:
        options.parse({"s3Endpoint": f"http://key:{SECRET}@host:9000"})
    assert SECRET not in str(caught.value) + caught.value.hint


@pytest.fixture
def server(tmp_path: Path, s3: S3Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Process, Connection]]:
    """A server that logs all it can, with credentials that the service refuses."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET + "-session")
    process = Process(tmp_path / "local", options={"logLevel": "DEBUG", **s3.options})
    connection = Connection(process.hello["port"])
    yield process, connection
    connection.close()
    process.close()


def test_secrets_are_in_no_answer_log_or_argument_when_a_service_refuses_them(
    server: tuple[Process, Connection], s3: S3Service, tmp_path: Path
) -> None:
    process, connection = server
    request = {**opening(tmp_path), "state_dir": s3.new_folder(), "options": {"logLevel": "DEBUG", **s3.options}}
    handle = connection.call("open", **request)["ok"]["handle"]
    begun = connection.call("begin", handle=handle, version=0)["ok"]
    answers = [
        connection.call("begin", handle=handle, version=1, id="ab" * 16),
        connection.call("commit", txn=begun["txn"], files=[]),
        connection.call("open", **{**request, "surprise": 1}),
    ]
    assert [answer["error"]["kind"] for answer in answers] == ["StorageError", "StorageError", "InvalidInputError"]
    assert "Could not" in answers[0]["error"]["message"]
    ticketed = connection.call("begin", handle=handle, version=0, attempt=3)["ok"]
    told = "".join(path.read_text(errors="replace") for path in (tmp_path / "local").rglob("*") if path.is_file())
    folder = Path(f"/proc/{process.process.pid}")
    if folder.exists():
        arguments, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        assert TOKEN.encode() not in arguments + environment
        assert SECRET.encode() not in arguments
        assert SECRET.encode() in environment, "where boto3 finds it: it was there before us"
    assert process.end_stdin() == 0
    for text in (*map(json.dumps, (*answers, ticketed)), told, process.stderr()):
        assert SECRET not in text
        assert TOKEN not in text
