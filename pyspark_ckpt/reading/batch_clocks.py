"""The clocks of a batch, as Spark's offset log has them: ``offsets/<batch>`` is a version line, then a line of JSON."""

from __future__ import annotations

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.json_objects import decode_as


class _Entry(msgspec.Struct):
    batchWatermarkMs: int  # noqa: N815 - Spark's names, here and below
    batchTimestampMs: int  # noqa: N815


def clock_ms(checkpoint: BlobPlace, version: int, clock: str) -> int:
    """What the clock, ``event`` or ``processing``, of the batch that made ``version`` says, in ms since 1970.

    Raises NotFoundError if the offset log does not have the batch, FormatError, StorageError.
    """
    name = f"offsets/{version - 1}"
    where = f"{checkpoint.url}/{name}"
    try:
        lines = checkpoint.get(name).split(b"\n")
    except NotFoundError as problem:
        raise NotFoundError(
            f"{where} is not there: nothing says what the clock of version {version} was.",
            hint="Read expired rows as well, and compare expires_at with a time of your own.",
        ) from problem
    entry = decode_as(lines[1] if len(lines) > 1 else b"", _Entry, where)
    if clock not in {"event", "processing"}:
        raise FormatError(f"The clock of a time to live is stored as {clock!r}, which is not a clock.")
    return entry.batchWatermarkMs if clock == "event" else entry.batchTimestampMs
