"""Run the state server process: read the hello, serve calls, and end with the JVM that started it.

- stdin: the first line is JSON with the settings and the token (the hello). Each later line carries secrets. The end of
  stdin means that the JVM is gone, however it died; the process then ends at once.
- stdout: one line of JSON that says where the server listens, or why it cannot start.
- stderr: log lines, and everything else that this process writes to stdout.

The token and the secrets appear nowhere else.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from pyspark_ckpt.state_store import options as option_table
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError, StorageError
from pyspark_ckpt.state_store.json_objects import DAMAGE
from pyspark_ckpt.state_store.local.files import take_open_files
from pyspark_ckpt.state_store.log import LOGGER, STDERR, log_to_stderr, shorten
from pyspark_ckpt.state_store.server.homes import MAX_TAKEOVER_S, delete_forgotten, take_home
from pyspark_ckpt.state_store.server.listener import Listener
from pyspark_ckpt.state_store.server.received_secrets import ReceivedSecrets
from pyspark_ckpt.state_store.server.rpc import PROTOCOL, Dispatcher, error_answer
from pyspark_ckpt.state_store.server.stores import Stores

STREAMS = STDIN, STDOUT, _ = (0, 1, STDERR)
STOP_DELAY_S = 0.2
FEW_OPEN_FILES = 4096
TAKEOVER_SHARE = 0.5
"""Share of ``startTimeout`` for which a server waits at most for another one. After all of it, the JVM ends it."""

_Line = TypeVar("_Line", bound="AnyHello")

_log = logging.getLogger(f"{LOGGER}.server")


class AnyHello(msgspec.Struct, frozen=True):
    """The part of the hello that every release has."""

    protocol: int


class Hello(AnyHello, frozen=True, forbid_unknown_fields=True):
    """The first line of stdin.

    ``executor_dir``: a folder that lives as long as the executor. ``executor``: its id. ``home``: the folder of an
    earlier state server of the same JVM, see ``homes``; empty if there was none.
    """

    token: str
    executor_dir: str
    executor: str
    home: str = ""
    options: dict[str, str] = {}

    def __repr__(self) -> str:
        """Never show the token."""
        return f"Hello(executor={self.executor!r})"


def main() -> int:
    """Run the server until stdin ends or ``stop`` is called. Return the exit status.

    Standard streams are used by their descriptor numbers: a module that the interpreter loads first (such as
    ``sitecustomize``) may have replaced or closed the objects in ``sys``.
    """
    answers = _take_stdout()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the JVM decides
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a connection that its client closes must not end the server
    stdin = open(STDIN, "rb", closefd=False)  # noqa: SIM115 - open until the process ends
    stopped, secrets = threading.Event(), ReceivedSecrets()
    try:
        hello = _hello(stdin.readline())
        options = option_table.parse(hello.options)
        log_to_stderr(options.log_level)
        _take_open_files()
        home, stores = _take_home(hello, options)
        listener = Listener(Dispatcher(stores, stopped.set, secrets).call, hello.token)
    except Exception as problem:  # noqa: BLE001 - the JVM must be told of any failure
        answer = error_answer(problem)
        _say(answers, {"error": {**answer, "message": shorten(answer["message"])}, "protocol": PROTOCOL})
        return 1
    about = {"pid": os.getpid(), "protocol": PROTOCOL, "version": _package_version(), "home": str(home)}
    _say(answers, {"port": listener.port, **about})
    _log.debug("state server %d listens on port %d, local folder %s", os.getpid(), listener.port, home)
    if options.local_dir:
        threading.Thread(target=delete_forgotten, args=(home.parent,), name="forgotten-homes", daemon=True).start()
    threading.Thread(target=_end_with_parent, args=(stdin, secrets), name="parent-watch", daemon=True).start()
    stopped.wait()
    stopped.clear()
    stopped.wait(STOP_DELAY_S)  # lets the answer to "stop" be sent
    stores.shut_down()
    _leave(0)
    return 0


def _hello(line: bytes) -> Hello:
    if not line:
        raise ProcessError(
            f"The stdin of the Python {sys.executable} ended before the hello of the JVM arrived.",
            hint="Something that this Python runs first (a sitecustomize, a wrapper script) closes or replaces its "
            "stdin. Change it to leave stdin alone.",
        )
    spoken = _decode(line, AnyHello).protocol
    if spoken != PROTOCOL:
        raise ProcessError(
            f"The jar of pyspark-ckpt speaks protocol {spoken}, but the state server in the Python {sys.executable} "
            f"speaks protocol {PROTOCOL}.",
            hint="Install the same release of pyspark-ckpt on the driver and on every executor.",
        )
    hello = _decode(line, Hello)
    if not hello.token or not Path(hello.executor_dir).is_absolute():
        raise InvalidInputError("The hello needs a token and an absolute executor_dir.")
    return hello


def _decode(line: bytes, kind: type[_Line]) -> _Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except DAMAGE as problem:
        raise InvalidInputError(f"The first line of stdin is not a valid hello: {problem}.") from problem


def _take_home(hello: Hello, options: option_table.Options) -> tuple[Path, Stores]:
    """Take a home in ``localDir``, perhaps of a dead executor, or else in the executor's own folder, and open it.

    The executor's own folder is deleted with the executor, so nothing is left over there.
    """
    parent = Path(options.local_dir or hello.executor_dir)
    if not parent.is_absolute():
        raise InvalidInputError(
            f"Option {option_table.PREFIX}localDir has the value {options.local_dir!r}, which is not an absolute path."
        )
    former = Path(hello.home) if hello.home else None
    try:
        home = take_home(
            parent,
            hello.executor,
            former=former,
            adopts=bool(options.local_dir),
            takeover_s=min(MAX_TAKEOVER_S, options.start_timeout_s * TAKEOVER_SHARE),
        )
        return home.path, Stores(home.folder, options)
    except OSError as problem:
        raise StorageError(
            f"The state server cannot use its local folder {parent}: {problem}",
            hint=f"Check whether its disk is full and who may write there, or set {option_table.PREFIX}localDir to "
            "another folder.",
        ) from problem


def _take_open_files() -> None:
    """Raise the limit of open files to what the system grants. Warn if that is low."""
    granted = take_open_files()
    if granted != resource.RLIM_INFINITY and granted < FEW_OPEN_FILES:
        _log.warning(
            "the state server may open only %d files, but every store needs some dozens: raise 'ulimit -n' to 65536",
            granted,
        )


def _end_with_parent(stdin: IO[bytes], secrets: ReceivedSecrets) -> None:
    """Receive secrets until stdin ends, then end at once. Local files tolerate a kill at any time."""
    for line in stdin:
        try:
            secrets.keep(line)
        except InvalidInputError as problem:
            _log.error("%s", problem.message)
    _leave(0)


def _leave(status: int) -> None:
    logging.shutdown()
    os._exit(status)


def _take_stdout() -> IO[bytes]:
    """Return the stream from which the JVM reads the answer. Later writes to stdout go to stderr, the log.

    Closed standard streams are opened on the null device. Otherwise the next opened file, for example one of a
    database, would get the stream's number and everything that is written to it.
    """
    is_closed = [_is_closed(number) for number in STREAMS]
    for number in STREAMS:
        if is_closed[number]:
            _open_on_nothing(number)
    if is_closed[STDOUT]:
        sys.exit(
            f"The stdout of the Python {sys.executable} is closed, by something that it runs first (a sitecustomize, a "
            "wrapper script). The JVM cannot be told where the state server listens. Leave the stream open."
        )
    with suppress(AttributeError, OSError, ValueError):  # sys.stdout may have been replaced by anything
        sys.stdout.flush()
    answers = os.fdopen(os.dup(STDOUT), "wb")
    os.dup2(STDERR, STDOUT)
    return answers


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


def _open_on_nothing(number: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing != number:
        os.dup2(nothing, number)
        os.close(nothing)


def _say(answers: IO[bytes], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    answers.flush()


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import

    try:
        return version("pyspark-ckpt")
    except PackageNotFoundError:
        return "0+unknown"
