"""Keep the bytes written to an object until it is durable, so that they can be written again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

IN_MEMORY_BYTES = 16 << 20
PIECE_BYTES = 1 << 20


class Spool:
    """Bytes in order. Few bytes are kept in memory, more in a file of the local temporary folder."""

    def __init__(self) -> None:
        """Start empty."""
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - closed by close()
        self.size = 0

    def append(self, data: bytes | memoryview) -> None:
        """Append ``data``. Raises OSError of the local disk."""
        self._file.seek(self.size)
        self._file.write(data)
        self.size += len(data)

    def pieces(self, start: int) -> Iterator[bytes]:
        """Yield all bytes from ``start`` on. Raises OSError of the local disk."""
        while start < self.size:
            self._file.seek(start)
            piece = self._file.read(min(PIECE_BYTES, self.size - start))
            start += len(piece)
            yield piece

    def close(self) -> None:
        """Discard all bytes."""
        self._file.close()
