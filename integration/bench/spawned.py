"""A process beside the bench, of a Python that knows nothing of this one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@contextmanager
def spawned(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run ``target`` in a process, with its end of a connection and ``arguments``; yield the other end.

    The process ends with the block.
    """
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=target, args=(its, *arguments), daemon=True)
    process.start()
    try:
        yield mine
    finally:
        process.terminate()
        process.join()
