"""Where tests keep what need not outlive them."""

from __future__ import annotations

from pathlib import Path

IN_MEMORY = Path("/dev/shm")
"""Where RocksDB need not wait for a disk, on systems that have it."""
