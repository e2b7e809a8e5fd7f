"""Rows many at once, by numpy: for offline work that reads all of them. The state server does not import it."""

from pyspark_ckpt.state_store.bulk.order import joined
from pyspark_ckpt.state_store.bulk.packed import Packed
from pyspark_ckpt.state_store.bulk.rolling_writer import RollingWriter
from pyspark_ckpt.state_store.bulk.rows import RowColumns
from pyspark_ckpt.state_store.bulk.sums import sum_of
from pyspark_ckpt.state_store.bulk.table_scan import Sums, columns_of, sums_of

__all__ = ["Packed", "RollingWriter", "RowColumns", "Sums", "columns_of", "joined", "sum_of", "sums_of"]
