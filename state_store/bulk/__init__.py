"""Rows many at once, by numpy: of whole stores and of batches. The state server does not import it."""

from pyspark_ckpt.state_store.bulk.cells import Cells
from pyspark_ckpt.state_store.bulk.lookup import LEAST_KEYS, look_up
from pyspark_ckpt.state_store.bulk.order import in_order, joined
from pyspark_ckpt.state_store.bulk.packed import Packed
from pyspark_ckpt.state_store.bulk.rolling_writer import RollingWriter
from pyspark_ckpt.state_store.bulk.rows import RowColumns
from pyspark_ckpt.state_store.bulk.sums import sum_of
from pyspark_ckpt.state_store.bulk.table_builder import is_built, write_columns
from pyspark_ckpt.state_store.bulk.table_scan import Sums, columns_of, sums_of

__all__ = [
    "LEAST_KEYS",
    "Cells",
    "Packed",
    "RollingWriter",
    "RowColumns",
    "Sums",
    "columns_of",
    "in_order",
    "is_built",
    "joined",
    "look_up",
    "sum_of",
    "sums_of",
    "write_columns",
]
