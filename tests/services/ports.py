"""A port for a server that cannot choose one itself."""

from __future__ import annotations

import socket


def find_free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now; another process may take it before the server does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
