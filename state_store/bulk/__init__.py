"""Rows many at once, by numpy: of whole stores and of batches. The state server does not import it."""

from pyspark_ckpt.state_store.bulk.cells import Cells, joined_cells, overlaid
from pyspark_ckpt.state_store.bulk.column_file import OpenColumnFiles, write_column_file
from pyspark_ckpt.state_store.bulk.lookup import look_up
from pyspark_ckpt.state_store.bulk.order import in_order, joined, places_in
from pyspark_ckpt.state_store.bulk.packed import Packed, concatenated, side_by_side
from pyspark_ckpt.state_store.bulk.rolling_writer import RollingWriter
from pyspark_ckpt.state_store.bulk.rows import RowColumns
from pyspark_ckpt.state_store.bulk.sums import sum_of
from pyspark_ckpt.state_store.bulk.table_builder import are_built, write_columns
from pyspark_ckpt.state_store.bulk.table_scan import Sums, columns_of, sums_of
from pyspark_ckpt.state_store.bulk.writes import Writes, last_of_each, newest
from pyspark_ckpt.state_store.column_names import LEAST_KEYS

__all__ = [
    "LEAST_KEYS",
    "Cells",
    "OpenColumnFiles",
    "Packed",
    "RollingWriter",
    "RowColumns",
    "Sums",
    "Writes",
    "are_built",
    "columns_of",
    "concatenated",
    "in_order",
    "joined",
    "joined_cells",
    "last_of_each",
    "look_up",
    "newest",
    "overlaid",
    "places_in",
    "side_by_side",
    "sum_of",
    "sums_of",
    "write_column_file",
    "write_columns",
]
