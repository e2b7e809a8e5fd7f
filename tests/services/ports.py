"""A port for a server that cannot choose one itself."""

from __future__ import annotations

import random
import socket

BELOW_CLIENTS = range(10_000, 32_768)
"""Ports that Linux gives to no client by itself (``net.ipv4.ip_local_port_range``), nor to a server that asks for 0."""

_random = random.SystemRandom()


def find_free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now; another process may take it before the server does."""
    while True:
        port = _random.choice(BELOW_CLIENTS)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
