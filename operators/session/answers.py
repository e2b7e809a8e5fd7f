"""What the task of a partition answers: output rows, and at the end of an answer the clocks to store (WorkerRows)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pyspark_ckpt.operators.declarations.operator import CLOCKS, ROWS


class Answers:
    """Makes the record batches of answers, of which each row has an output row, the clocks at an end, or both."""

    def __init__(self, output: pa.Schema) -> None:
        """``output``: the columns of an output row."""
        self._fields = list(output)
        rows = pa.struct(self._fields)
        self._schema = pa.schema([(ROWS, rows), (CLOCKS, pa.binary())])
        self._nothing = pa.nulls(1, rows)

    def some(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return a part of an answer, before its end."""
        return self._make(self._structs(rows), pa.nulls(len(rows), pa.binary()))

    def end(self, clocks: bytes) -> pa.RecordBatch:
        """Return the end of an answer, without rows. ``clocks``: empty for none."""
        return self._make(self._nothing, pa.array([clocks]))

    def whole(self, output: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return an answer with some rows and no clocks to store."""
        some = [rows for rows in output if len(rows)]
        if not some:
            return [self.end(b"")]
        *others, last = some
        ends = pa.array([*[None] * (len(last) - 1), b""], pa.binary())
        return [*map(self.some, others), self._make(self._structs(last), ends)]

    def _structs(self, rows: pa.RecordBatch) -> pa.StructArray:
        return pa.StructArray.from_arrays(rows.columns, fields=self._fields)

    def _make(self, rows: pa.Array, clocks: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([rows, clocks], schema=self._schema)
