"""HDFS: a name node and a data node, each a process of its own that can be killed."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from hdfs_native import Client

from tests.services.hdfs_service import MINI_CLUSTER
from tests.services.java_program import JAVA, SHORT_LIFE

PROGRAM = Path(__file__).with_name("Hdfs.java")
PORT = 8020


def node_commands(folder: Path, addresses: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the commands that start the nodes at their addresses: "name" and "data".

    Their state is below ``folder``. Without any, a name node begins a new file system.
    """
    path = os.pathsep.join(map(str, sorted(MINI_CLUSTER.glob("*.jar"))))
    java = [*JAVA, *SHORT_LIFE, "-cp", path, str(PROGRAM)]
    names = addresses["name"]
    return {role: [*java, role, str(folder / role), address, names] for role, address in addresses.items()}


def url_of(names: str) -> str:
    """Return the URL of the file system whose name node has this address."""
    return f"hdfs://{names}:{PORT}"


def takes_files(url: str) -> bool:
    """Return whether all nodes are up."""
    try:
        with Client(url).create(f"/ready-{uuid.uuid4().hex}") as file:  # a try without a data node leaves its file
            file.write(b"ready")
    except Exception:  # noqa: BLE001 - its nodes do not listen yet
        time.sleep(0.5)
        return False
    return True
