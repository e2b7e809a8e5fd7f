"""Record what a program does to the files of a folder, by ``strace``, as one list of operations in their order."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    "openat,open,creat,write,pwrite64,writev,pwritev,sendfile,copy_file_range,fsync,fdatasync,sync_file_range,"
    "ftruncate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat"
)
_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>)?(.*)", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(?:<(.*?)>)?(?: .*)?", re.DOTALL)
_HEX = re.compile(r"(?:\\x[0-9a-f]{2})*")
AT_CWD = "AT_FDCWD"


class UnknownCallError(Exception):
    """A call changes the folder in a way that is not followed here."""


@dataclass(frozen=True)
class Operation:
    """One call that succeeded.

    ``kind``: create, write, truncate, sync, link, rename, remove, or folder. ``path``: of the file or folder that is
    meant. ``other``: the new name of a link or rename. ``data``: what is written, at ``at`` (None: at the end).
    """

    kind: str
    path: str
    other: str = ""
    data: bytes = b""
    at: int | None = None


def record(command: Sequence[str], trace: Path, environment: Mapping[str, str]) -> None:
    """Run a command to its end, and record its calls in ``trace``. Raises CalledProcessError."""
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", str(1 << 24), "-e", "signal=none"]
    recorded = [*strace, "-e", f"trace={CALLS}", "-o", str(trace), *command]
    subprocess.run(recorded, check=True, env=environment, timeout=600)


def can_record() -> bool:
    """Return whether ``strace`` is installed."""
    return shutil.which("strace") is not None


def read(trace: Path, folders: Sequence[Path]) -> Iterator[Operation]:
    """Yield the operations below any of ``folders``, which are absolute. Raises UnknownCallError."""
    roots = tuple(f"{folder}/" for folder in folders)
    with trace.open(encoding="utf-8", errors="surrogateescape") as lines:
        for name, arguments, result, opened in _calls(lines):
            for operation in _understand(name, arguments, result, opened):
                if f"{operation.path}/".startswith(roots) or f"{operation.other}/".startswith(roots):
                    yield operation


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, list[str], int, str]]:
    """Yield the calls that succeeded, in the order in which they ended: name, arguments, result, path of the result."""
    begun: dict[str, str] = {}
    for line in lines:
        found = _LINE.fullmatch(line.rstrip("\n"))
        if found is None:
            raise UnknownCallError(f"not a line of strace: {line[:200]}")
        process, resumed, rest = found.groups()
        if rest.endswith(_UNFINISHED):
            begun[process] = rest.removesuffix(_UNFINISHED)
            continue
        if resumed:
            rest = begun.pop(process) + rest
        call = _CALL.fullmatch(rest)
        if call is None:  # a signal, or the end of a process
            continue
        name, arguments, result, opened = call.groups()
        if result != "?" and int(result) >= 0:
            yield name, _split(arguments), int(result), _text(opened or "")


def _split(arguments: str) -> list[str]:
    """Part arguments at commas outside of quotes and brackets."""
    parts, depth, quoted, part = [], 0, False, ""
    for piece in re.split(r'([",\[\]{}])', arguments):
        if piece == '"':
            quoted = not quoted
        elif not quoted and piece in ("[", "{"):
            depth += 1
        elif not quoted and piece in ("]", "}"):
            depth -= 1
        if piece == "," and not quoted and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += piece
    return [*parts, part.strip()] if part.strip() else parts


def _bytes(text: str) -> bytes:
    if not _HEX.fullmatch(text):
        return text.encode(errors="surrogateescape")
    return bytes.fromhex(text.replace("\\x", ""))


def _text(text: str) -> str:
    return _bytes(text).decode(errors="surrogateescape").removesuffix(" (deleted)")


def _string(argument: str) -> bytes:
    if not argument.startswith('"') or not argument.endswith('"'):
        raise UnknownCallError(f"not all of a string was recorded: {argument[:100]}")
    return _bytes(argument[1:-1])


def _file(argument: str) -> str:
    """Return the path of a file descriptor."""
    found = re.fullmatch(r"(?:\d+|AT_FDCWD)(?:<(.*)>)?", argument, re.DOTALL)
    return _text(found[1] or "") if found else ""


def _path(folder: str, name: str) -> str:
    """Return the path that a call names, below an open folder."""
    text = _string(name).decode(errors="surrogateescape")
    return text if text.startswith("/") else f"{_file(folder)}/{text}"


def _understand(name: str, given: list[str], result: int, opened: str) -> Iterator[Operation]:  # noqa: C901, PLR0912
    if name in ("open", "openat", "creat"):
        flags = "O_CREAT|O_TRUNC" if name == "creat" else given[2 if name == "openat" else 1]
        if "O_CREAT" in flags:
            yield Operation("create", opened)
        if "O_TRUNC" in flags:
            yield Operation("truncate", opened)
    elif name == "write":
        yield Operation("write", _file(given[0]), data=_string(given[1])[:result])
    elif name == "pwrite64":
        yield Operation("write", _file(given[0]), data=_string(given[1])[:result], at=int(given[3]))
    elif name in ("writev", "pwritev"):
        data = b"".join(_string(each) for each in re.findall(r'iov_base=("[^"]*")', given[1]))
        at = int(given[3]) if name == "pwritev" else None
        yield Operation("write", _file(given[0]), data=data[:result], at=at)
    elif name in ("sendfile", "copy_file_range"):
        source, target = (given[1], given[0]) if name == "sendfile" else (given[0], given[2])
        yield Operation("copy", _file(target), other=_file(source), at=result)
    elif name in ("fsync", "fdatasync"):
        yield Operation("sync", _file(given[0]))
    elif name == "ftruncate":
        yield Operation("truncate", _file(given[0]), at=int(given[1]))
    elif name == "rename":
        yield Operation("rename", _path(AT_CWD, given[0]), other=_path(AT_CWD, given[1]))
    elif name in ("renameat", "renameat2"):
        yield Operation("rename", _path(given[0], given[1]), other=_path(given[2], given[3]))
    elif name == "link":
        yield Operation("link", _path(AT_CWD, given[0]), other=_path(AT_CWD, given[1]))
    elif name == "linkat":
        yield Operation("link", _path(given[0], given[1]), other=_path(given[2], given[3]))
    elif name in ("unlink", "rmdir"):
        yield Operation("remove", _path(AT_CWD, given[0]))
    elif name == "unlinkat":
        yield Operation("remove", _path(given[0], given[1]))
    elif name == "mkdir":
        yield Operation("folder", _path(AT_CWD, given[0]))
    elif name == "mkdirat":
        yield Operation("folder", _path(given[0], given[1]))
    elif name in ("symlink", "symlinkat"):
        yield Operation("symlink", _path(AT_CWD if name == "symlink" else given[1], given[-1]))
