"""Valid bytes and JSON, damaged in the ways of rot and of malice; and what a reader may do with them.

``CKPT_FUZZ=50`` makes every test 50 times as long.
"""

from __future__ import annotations

import copy
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, StorageError
from tests.labs.length import TIMES

T = TypeVar("T")

EXAMPLES = 40 * TIMES
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="CKPT_FUZZ" not in os.environ,  # what CI runs is the same every time
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""The settings of a fuzz test."""

SPARE_BYTES = 256 << 10
"""What any reading may take beside a multiple of its input: error messages, regular expressions, caches."""
TIMES_INPUT = 64
REFUSED = (FormatError, InvalidInputError, StorageError)

_SIZES = (2**31, 2**63, 2**64 - 1)
_TOKENS = (
    *(b"../", b"/etc/passwd", b"\0", b"-1", b"null", b"1e999", b"[" * 3000, b"{", b'"', b"9" * 400),
    *(size.to_bytes(8, "big") for size in _SIZES),
    *(size.to_bytes(8, "little") for size in _SIZES),
    *(b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),
)
_HOSTILE: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 2**31, 2**63 - 1, 2**63, 2**64, 10**40, 1.5, True, None, [], {}, ""),
    *("../../evil", "/etc/passwd", "a/b", "..", ".", "a\0b", "x" * 5000, "0" * 20, "s3://[", "a\nb"),
    *("\u0661\u0662", "\ufffd"),
)
_DEEP = "<deep>"


@st.composite
def damaged(draw: DrawFn, valid: bytes) -> bytes:
    """``valid`` with one to three places changed: flipped, cut, repeated, spliced, or a size that is huge."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        end = min(len(content), at + draw(st.integers(1, 16)))
        how = draw(st.sampled_from(("flip", "cut", "drop", "repeat", "splice", "insert", "bytes")))
        if how == "flip" and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del content[at:]
        elif how == "drop":
            del content[at:end]
        elif how == "repeat":
            content[at:at] = content[at:end] * draw(st.integers(1, 40))
        elif how in ("splice", "insert"):
            token = draw(st.sampled_from(_TOKENS))
            content[at : at + (len(token) if how == "splice" else 0)] = token
        else:
            content[at:end] = draw(st.binary(max_size=24))
    return bytes(content)


@st.composite
def damaged_json(draw: DrawFn, valid: Any) -> bytes:  # noqa: ANN401
    """JSON of the form of ``valid`` with one to three values that are not as they should be, or not there."""
    document = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(("hostile", "hostile", "deep", "gone", "twice", "bit")))
        if how == "gone":
            del holder[key]
        elif how == "twice" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif how == "bit" and isinstance(holder[key], int):
            holder[key] = int(holder[key]) ^ 1 << draw(st.integers(0, 16))
        else:
            holder[key] = _DEEP if how == "deep" else draw(st.sampled_from(_HOSTILE))
    return json.dumps(document).replace(f'"{_DEEP}"', "[" * 3000 + "]" * 3000).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(inside):
        yield value, key
        yield from _places(each)


def any_damage(valid: bytes) -> SearchStrategy[bytes]:
    """Both kinds of damage to JSON bytes."""
    return damaged(valid) | damaged_json(json.loads(valid))


class TookTooMuchMemoryError(AssertionError):
    """Much more memory was taken at once than the input has bytes."""


@contextmanager
def little_memory(input_bytes: int, spare_bytes: int = SPARE_BYTES) -> Iterator[None]:
    """Raise TookTooMuchMemoryError if what is done within takes much more memory at once than its input has bytes."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > spare_bytes + TIMES_INPUT * input_bytes:
        raise TookTooMuchMemoryError(f"{peak} bytes for an input of {input_bytes}")


def read_or_refuse(read: Callable[[], T], content: bytes, where: str, spare_bytes: int = SPARE_BYTES) -> T | None:
    """What ``read`` makes of ``content``; None if it refuses it, in an error of the tree that says ``where``.

    If a reading takes too much memory, a second one decides: the first one's may be what is made once in a process, or
    what another thread took.
    """
    try:
        with little_memory(len(content), spare_bytes):
            return _read_or_none(read, where)
    except TookTooMuchMemoryError:
        with little_memory(len(content), spare_bytes):
            return _read_or_none(read, where)


def _read_or_none(read: Callable[[], T], where: str) -> T | None:
    try:
        return read()
    except REFUSED as problem:
        assert where in problem.message, problem.message  # noqa: PT017 - what it reads is checked by the caller
        return None
