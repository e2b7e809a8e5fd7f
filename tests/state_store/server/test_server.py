"""The process: hello, calls over real py4j, the token, fail points, and its end with the parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from py4j.protocol import get_command_part, unescape_new_line

from pyspark_ckpt.state_store.failpoints import NAMES
from pyspark_ckpt.state_store.server.homes import MAX_TAKEOVER_S, delete_forgotten
from pyspark_ckpt.state_store.server.rpc import PROTOCOL
from tests.services.s3_server import S3Service, hide_credentials

TOKEN = "a-secret-token"  # noqa: S105 - made up


class Process:
    """A state server as the JVM runs it."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, **hello: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyspark_ckpt.state_store.server"],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        settings = {"protocol": PROTOCOL, "token": TOKEN, "executor_dir": str(folder), "executor": "0", "options": {}}
        self.write({**settings, **hello})
        assert self.process.stdout is not None
        self.hello = json.loads(self.process.stdout.readline())

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def write(self, line: dict[str, Any]) -> None:
        self._stdin.write(json.dumps(line).encode() + b"\n")
        self._stdin.flush()

    def end_stdin(self) -> int:
        self._stdin.close()
        return self.process.wait(10)

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Connection:
    """What py4j's Java side sends, by hand."""

    def __init__(self, port: int, token: str = TOKEN) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._answers = self._socket.makefile("r", encoding="utf-8")
        self._socket.sendall(f"A\n{token}\ne\n".encode())
        self.accepted = self._answers.readline().startswith("!yv")

    def call(self, method: str, **request: object) -> dict[str, Any]:
        command = "c\nt\ncall\n" + get_command_part(method) + get_command_part(json.dumps(request)) + "e\n"
        self._socket.sendall(command.encode())
        line = self._answers.readline().rstrip("\n")
        if not line:
            raise ConnectionResetError
        assert line.startswith("!ys")
        answer: dict[str, Any] = json.loads(unescape_new_line(line[3:]))
        return answer

    def send(self, text: str) -> None:
        self._socket.sendall(text.encode())

    def reset(self) -> None:
        """Close it, with answers that nobody has read."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.close()


@pytest.fixture
def connections() -> Iterator[list[Connection]]:
    made: list[Connection] = []
    yield made
    for connection in made:
        connection.close()


def opening(tmp_path: Path) -> dict[str, Any]:
    return {
        "state_dir": str(tmp_path / "checkpoint" / "state" / "0" / "0"),
        "checkpoint_root": str(tmp_path / "checkpoint"),
        "operator": 0,
        "partition": 0,
        "name": "default",
        "run_id": "r",
        "format": 2,
        "min_versions_to_retain": 2,
        "options": {},
    }


def test_it_serves_several_connections(tmp_path: Path, processes: list[Process], connections: list[Connection]) -> None:
    server = Process(tmp_path / "local")
    processes.append(server)
    assert server.hello["pid"] == server.process.pid
    assert server.hello["protocol"] == PROTOCOL
    connections.extend(Connection(server.hello["port"]) for _ in range(3))
    handle = connections[0].call("open", **opening(tmp_path))["ok"]["handle"]
    begun = connections[1].call("begin", handle=handle, version=0)["ok"]
    assert connections[2].call("commit", txn=begun["txn"], files=[])["ok"]["id"] == begun["new_id"]
    assert connections[0].call("begin", handle=99, version=0)["error"]["kind"] == "LifecycleError"


def test_a_wrong_token_is_refused_and_the_right_one_is_never_shown(
    tmp_path: Path, processes: list[Process], connections: list[Connection]
) -> None:
    server = Process(tmp_path / "local", options={"logLevel": "DEBUG"})
    processes.append(server)
    connections.append(Connection(server.hello["port"], "wrong"))
    assert not connections[0].accepted
    command_line = Path(f"/proc/{server.process.pid}/cmdline")
    environment = Path(f"/proc/{server.process.pid}/environ")
    if command_line.exists():
        assert TOKEN.encode() not in command_line.read_bytes() + environment.read_bytes()
    assert server.end_stdin() == 0
    assert TOKEN not in server.stderr()


def test_keys_of_s3a_are_used_and_never_shown_when_they_come_by_stdin(
    tmp_path: Path,
    processes: list[Process],
    connections: list[Connection],
    s3: S3Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = s3.s3a_keys
    wrong = {**right, "fs.s3a.secret.key": "wrong-and-secret", "fs.s3a.session.token": "a-token-of-a-session"}
    folder = s3.new_folder().replace("s3:", "s3a:")
    place = {"checkpoint_root": folder, "state_dir": f"{folder}/state/0/0", "hadoop": s3.s3a}
    hide_credentials(monkeypatch, tmp_path)
    server = Process(tmp_path / "local", options={"logLevel": "DEBUG"})
    processes.append(server)
    connections.append(Connection(server.hello["port"]))

    def begin(number: int | None) -> dict[str, Any]:
        opened = connections[0].call("open", **{**opening(tmp_path), **place, "secrets": number})
        begun = connections[0].call("begin", handle=opened["ok"]["handle"], version=0)
        done = connections[0].call("commit", txn=begun["ok"]["txn"], files=[]) if "ok" in begun else begun
        connections[0].call("close", handle=opened["ok"]["handle"])
        return done

    server.write({"number": 0, "secrets": right})
    server.write({"number": 1, "secrets": wrong})
    server.write({"surprise": right})
    answers = [begin(None), begin(1), begin(0)]
    assert [list(answer) for answer in answers] == [["error"], ["error"], ["ok"]]
    assert "fs.s3a.access.key" in answers[0]["error"]["hint"]
    kept = b"".join(path.read_bytes() for path in (tmp_path / "local").rglob("*") if path.is_file())
    process = Path(f"/proc/{server.process.pid}")
    if process.exists():
        kept += (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert server.end_stdin() == 0
    seen = json.dumps(answers) + server.stderr() + kept.decode(errors="replace")
    assert "A line of stdin is malformed" in seen
    secrets = (right["fs.s3a.secret.key"], wrong["fs.s3a.secret.key"], wrong["fs.s3a.session.token"])
    assert [secret for secret in secrets if secret in seen] == []


def test_it_ends_when_stdin_ends_and_not_on_an_interrupt(tmp_path: Path, processes: list[Process]) -> None:
    server = Process(tmp_path / "local")
    processes.append(server)
    server.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.5)
    assert server.end_stdin() == 0


def test_it_ends_when_told_to(tmp_path: Path, processes: list[Process], connections: list[Connection]) -> None:
    server = Process(tmp_path / "local")
    processes.append(server)
    connections.append(Connection(server.hello["port"]))
    assert connections[0].call("stop") == {"ok": {}}
    assert server.process.wait(10) == 0


@pytest.mark.parametrize(
    ("hello", "kind", "words"),
    [
        ({"protocol": 7, "field_of_protocol_7": 1}, "ProcessError", "protocol 7"),
        ({"protocol": "two"}, "InvalidInputError", "protocol"),
        ({"options": {"nonsense": "1"}}, "InvalidInputError", "nonsense"),
        ({"executor_dir": "relative"}, "InvalidInputError", "executor_dir"),
        ({"options": {"localDir": "relative"}}, "InvalidInputError", "localDir"),
        ({"surprise": 1}, "InvalidInputError", "surprise"),
    ],
)
def test_a_hello_it_cannot_use_is_answered(
    tmp_path: Path, processes: list[Process], hello: dict[str, Any], kind: str, words: str
) -> None:
    server = Process(tmp_path / "local", **hello)
    processes.append(server)
    assert server.hello["error"]["kind"] == kind
    assert words in server.hello["error"]["message"]
    assert server.hello["protocol"] == PROTOCOL
    assert server.process.wait(10) == 1


def test_a_jar_of_another_release_is_told_to_install_the_same(tmp_path: Path, processes: list[Process]) -> None:
    server = Process(tmp_path / "local", protocol=1, local_dir="what protocol 1 may have had")
    processes.append(server)
    assert "same release" in server.hello["error"]["hint"]


def test_a_python_whose_stdin_something_has_closed_is_told_of() -> None:
    command = [sys.executable, "-m", "pyspark_ckpt.state_store.server"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["retryable"]) == (1, "ProcessError", False)
    assert "leave stdin alone" in error["hint"]


def test_a_folder_whose_name_the_locale_cannot_have_is_named_with_what_to_do(
    tmp_path: Path, processes: list[Process]
) -> None:
    ascii_only = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    server = Process(tmp_path / "d\u00e9", ascii_only)
    processes.append(server)
    error = server.hello["error"]
    assert error["kind"] == "InvalidInputError"
    assert "d\u00e9" in error["message"]
    assert "UTF-8" in error["hint"]


def test_a_connection_that_goes_away_ends_no_server_whatever_is_loaded_first(
    tmp_path: Path, processes: list[Process], connections: list[Connection]
) -> None:
    code = "import signal, sys, io; signal.signal(signal.SIGPIPE, signal.SIG_DFL); sys.stderr = io.StringIO()"
    (tmp_path / "sitecustomize.py").write_text(code)
    server = Process(tmp_path / "local", {"PYTHONPATH": str(tmp_path)}, options={"logLevel": "DEBUG"})
    processes.append(server)
    for _ in range(5):
        gone = Connection(server.hello["port"])
        gone.send("".join(["c\nt\ncall\n", get_command_part("stats"), get_command_part("{}"), "e\n"]) * 500)
        gone.reset()
    connections.append(Connection(server.hello["port"]))
    assert "ok" in connections[0].call("stats")
    assert server.end_stdin() == 0
    assert "listens on port" in server.stderr()


def test_servers_that_share_a_folder_have_a_private_one_each(tmp_path: Path, processes: list[Process]) -> None:
    processes += [Process(tmp_path / "executor", options={"localDir": str(tmp_path / "local")}) for _ in range(2)]
    homes = [Path(process.hello["home"]) for process in processes]
    assert homes[0] != homes[1]
    assert sorted(homes) == sorted((tmp_path / "local").iterdir())
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for home in homes for folder in (home, home / "server"))


def test_a_server_goes_on_in_the_folder_of_a_killed_one_if_the_user_has_chosen_the_place(
    tmp_path: Path, processes: list[Process]
) -> None:
    for options in ({"localDir": str(tmp_path / "local")}, {}):
        first = Process(tmp_path / "executor", options=options)
        first.close()
        second = Process(tmp_path / "executor", options=options)
        assert (second.hello["home"] == first.hello["home"]) == bool(options)
        second.close()
        again = Process(tmp_path / "executor", options=options, home=second.hello["home"])
        processes.append(again)
        assert again.hello["home"] == second.hello["home"]


def test_a_home_is_taken_when_its_jvm_died_before_it_locked_it(tmp_path: Path, processes: list[Process]) -> None:
    options = {"localDir": str(tmp_path / "local")}
    first = Process(tmp_path / "executor", options=options)
    processes.append(first)
    assert first.end_stdin() == 0
    processes.append(Process(tmp_path / "executor", options=options))
    assert processes[-1].hello["home"] == first.hello["home"]


def test_a_home_is_not_forgotten_while_its_executor_commits(
    tmp_path: Path, processes: list[Process], connections: list[Connection]
) -> None:
    server = Process(tmp_path / "executor", options={"localDir": str(tmp_path / "local")})
    processes.append(server)
    connections.append(Connection(server.hello["port"]))
    handle = connections[0].call("open", **opening(tmp_path))["ok"]["handle"]

    def commit(version: int, commit_id: str | None) -> str:
        begun = connections[0].call("begin", handle=handle, version=version, id=commit_id)["ok"]
        return str(connections[0].call("commit", txn=begun["txn"], files=[])["ok"]["id"])

    first = commit(0, None)
    connections[0].call("await_ingest", handle=handle)
    home = Path(server.hello["home"])
    for path in (home, *home.rglob("*")):
        os.utime(path, (time.time() - 8 * 86400,) * 2)
    commit(1, first)
    server.close()
    delete_forgotten(home.parent)
    assert home.exists()


def test_a_server_does_not_wait_for_a_stuck_one_for_as_long_as_its_jvm_waits_for_it(
    tmp_path: Path, processes: list[Process]
) -> None:
    def start(home: str) -> float:
        began = time.monotonic()
        processes.append(Process(tmp_path / "executor", options={"startTimeout": "1s"}, home=home))
        assert "port" in processes[-1].hello
        return time.monotonic() - began

    usual = start("")
    assert start(processes[0].hello["home"]) - usual < MAX_TAKEOVER_S - 1


def test_log_lines_say_which_store(tmp_path: Path, processes: list[Process], connections: list[Connection]) -> None:
    server = Process(tmp_path / "local")
    processes.append(server)
    connections.append(Connection(server.hello["port"]))
    handle = connections[0].call("open", **opening(tmp_path))["ok"]["handle"]
    txn = connections[0].call("begin", handle=handle, version=0)["ok"]["txn"]
    done = connections[0].call("commit", txn=txn, files=[])["ok"]
    connections[0].call("begin", handle=handle, version=1, id=done["id"])
    connections[0].call("snapshot", handle=handle, force=True)
    server.end_stdin()
    lines = [json.loads(line) for line in server.stderr().splitlines()]
    assert any(line.get("store") == "0/0/default" and line["level"] == "INFO" for line in lines)


IN_A_COMMIT = sorted(name for name in NAMES if name.startswith(("begin", "commit")))


@pytest.mark.parametrize("name", IN_A_COMMIT)
def test_nothing_is_lost_when_it_is_killed(
    name: str, tmp_path: Path, processes: list[Process], connections: list[Connection]
) -> None:
    """Kill at the second pass of a fail point; the retry, on a new server, finds the base and goes on."""
    folder, ids, died = tmp_path / "local", list[str](), 0

    def start() -> tuple[Connection, int]:
        options = {"failPoints": f"{name}:kill@2", "localDir": str(folder)}
        processes.append(Process(tmp_path / "executor", options=options))
        connections.append(Connection(processes[-1].hello["port"]))
        return connections[-1], connections[-1].call("open", **opening(tmp_path))["ok"]["handle"]

    connection, handle = start()
    while len(ids) < 4:
        try:
            base = ids[-1] if ids else None
            begun = connection.call("begin", handle=handle, version=len(ids), id=base, attempt=1)["ok"]
            done = connection.call("commit", txn=begun["txn"], files=[])["ok"]
        except (ConnectionError, TimeoutError):
            died += 1
            assert processes[-1].process.wait(10) == -signal.SIGKILL
            connection, handle = start()
        else:
            assert done["version"] == len(ids) + 1
            ids.append(done["id"])
    assert died == 1
    begun = connection.call("begin", handle=handle, version=4, id=ids[-1])["ok"]
    assert begun["version"] == 4
