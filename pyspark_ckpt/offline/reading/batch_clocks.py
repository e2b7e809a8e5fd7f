"""The clocks of a batch in Spark's offset log, whose ``offsets/<batch>`` is a version line, then a line of JSON."""

from __future__ import annotations

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError
from pyspark_ckpt.state_store.json_objects import Change, decode_as


class _Entry(msgspec.Struct):
    batchWatermarkMs: Change  # noqa: N815 - Spark's names, here and below
    batchTimestampMs: Change  # noqa: N815


def clock_ms(checkpoint: BlobPlace, version: int, clock: str) -> int:
    """Return what a clock, ``event`` or ``processing``, said in the batch that made ``version``, in ms since 1970.

    Raises NotFoundError (the offset log does not have the batch), FormatError, StorageError.
    """
    name = f"offsets/{version - 1}"
    where = f"{checkpoint.url}/{name}"
    try:
        lines = checkpoint.get(name).split(b"\n")
    except NotFoundError as problem:
        raise NotFoundError(
            f"{where} is missing, so the clock of version {version} is unknown.",
            hint="Read expired rows as well, and compare expires_at with a time of your choice.",
        ) from problem
    entry = decode_as(lines[1] if len(lines) > 1 else b"", _Entry, where)
    if clock not in {"event", "processing"}:
        raise FormatError(f"The clock of a time to live must be 'event' or 'processing', but {clock!r} is stored.")
    return entry.batchWatermarkMs if clock == "event" else entry.batchTimestampMs
