"""Which boot of which machine this is: files that were never fsynced mean nothing after another one."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from pyspark_ckpt.state_store.errors import InvalidInputError


def boot_id() -> str:
    """Identity of the running boot. Raises InvalidInputError on a system other than Linux and macOS."""
    system = platform.system()
    if system == "Linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    if system == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    raise InvalidInputError(f"The state server does not run on {system}.", hint="Use Linux or macOS.")
