"""A network far away: a process that passes bytes on to a service, each of a client's some milliseconds later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from integration.bench.spawned import spawned

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CHUNK_BYTES = 1 << 16


@contextmanager
def far_away(endpoint: str, latency_s: float) -> Iterator[str]:
    """A proxy of ``endpoint`` that delays every answer by ``latency_s``."""
    with spawned(_serve, endpoint, latency_s) as proxy:
        yield f"http://127.0.0.1:{proxy.recv()}"


def _serve(connection: Connection, endpoint: str, latency_s: float) -> None:
    target = urlsplit(endpoint)

    async def serve() -> None:
        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
            await asyncio.gather(_pass_on(reader, far_writer, latency_s), _pass_on(far_reader, writer, 0.0))

        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        connection.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency_s: float) -> None:
    """Every chunk, so much later; many may be on their way at once."""
    on_their_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    clock = asyncio.get_running_loop().time

    async def receive() -> None:
        data = b"-"
        while data:
            with suppress(ConnectionError):
                data = await reader.read(CHUNK_BYTES)
            await on_their_way.put((clock() + latency_s, data))

    receiving = asyncio.create_task(receive())
    with suppress(ConnectionError):
        while True:
            due_s, data = await on_their_way.get()
            await asyncio.sleep(max(0.0, due_s - clock()))
            if not data:
                break
            writer.write(data)
            await writer.drain()
    receiving.cancel()
    writer.close()
