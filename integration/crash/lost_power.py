"""A disk that can lose its power: an ext4 file system in a file, of which a copy has only what was made durable.

The copy is taken while the processes that write there are stopped. It is what a machine finds after a loss of power:
what the kernel had not written yet is missing.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_ckpt.testing.crashes.processes import find_marked

IMAGE_BYTES = 64 << 20
LONG_S = 600
"""How long the file system keeps what nobody syncs. By default, that is five seconds."""


class NoDiskError(Exception):
    """There are no loop devices, or this user may not mount them."""


class Disk:
    """A mounted image, at ``path``."""

    def __init__(self, image: Path, path: Path) -> None:
        """Have mounted ``image`` at ``path``."""
        self._image, self.path = image, path

    def copy_as_power_is_lost(self, mark: str, image: Path) -> None:
        """Stop all processes with ``mark`` for as long as the copy takes."""
        stopped = find_marked(mark)
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        try:
            shutil.copyfile(self._image, image)
        finally:
            for process in stopped:
                process.send_signal(signal.SIGCONT)


def make_image(image: Path, size_bytes: int = IMAGE_BYTES) -> None:
    """Make an empty file system. Raises NoDiskError."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", str(image))


@contextmanager
def mounted(image: Path, path: Path) -> Iterator[Disk]:
    """Mount an image, and unmount it at the end. Raises NoDiskError."""
    path.mkdir()
    _run("mount", "-o", f"loop,commit={LONG_S}", str(image), str(path))
    try:
        yield Disk(image, path)
    finally:
        _run("umount", "--lazy", str(path))  # lazy: also if a process still has a file there


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as problem:
        raise NoDiskError(f"{command[0]} is not installed") from problem
    except subprocess.CalledProcessError as problem:
        raise NoDiskError(f"{' '.join(command)}: {problem.stderr.strip()}") from problem
