"""Identify the boot of this machine: files that were not fsynced cannot be trusted after another boot."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from pyspark_ckpt.state_store.errors import InvalidInputError


def boot_id() -> str:
    """Return the identity of the running boot. Raises InvalidInputError unless on Linux or macOS."""
    system = platform.system()
    if system == "Linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    if system == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    raise InvalidInputError(f"The state server does not run on {system}.", hint="Use Linux or macOS.")
