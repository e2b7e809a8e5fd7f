"""Write docs/options.md from the table that the program itself reads, state_store/options.json.

Run by ``make docs``; a test fails when the page is not what this writes.
"""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_ckpt.state_store.options import PREFIX, OptionRow, table

PAGE = Path(__file__).with_name("options.md")

HEAD = f"""\
# Options

Written by `make docs` from `state_store/options.json`: change it there.

Every key has the prefix `{PREFIX}`. An option is set as a Spark conf, or in snake case:

```python
pyspark_ckpt.configure(SparkSession.builder, memory_limit="1g")
SparkSession.builder.config("{PREFIX}memoryLimit", "1g")
```

A query that meets an unknown key or a value out of range is refused when it starts; the message names the key.
Sizes are written as `256m` or `1g`, times as `60s` or `10m`. They are read when a query starts;
`python`, `memoryLimit`, `localDir`, `startTimeout`, `logLevel` and `failPoints` are of the executor's process, and stay what
the first query there had.

| key | type | default | what it does |
|---|---|---|---|
"""

TAIL = f"""
Three confs of Spark's own matter as much, and work as Spark documents them:

| conf | what `configure()` does | meaning |
|---|---|---|
| `{PREFIX.removesuffix("ckpt.")}providerClass` | sets it | which state store a *new* query gets; a checkpoint remembers its own |
| `{PREFIX.removesuffix("ckpt.")}checkpointFormatVersion` | `2`, unless it is set | `2`: the commit log names the winner of every commit. `1` works, too; a query may go from either to the other |
| `spark.sql.streaming.minBatchesToRetain` | leaves it | how many versions stay restorable; what is older is deleted in the background |
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page as it must be now."""
    return HEAD + "".join(_line(key, row) for key, row in table().items()) + TAIL


def _line(key: str, row: OptionRow) -> str:
    kind = " or ".join(f"`{value}`" for value in row.values) if row.values else row.type
    unit = f" ({row.unit})" if row.unit not in {"", row.type} else ""
    least = f" At least {row.min}." if row.min is not None else ""
    most = f" At most {row.max}." if row.max is not None else ""
    default = f"`{row.default}`" if row.default != "" else "empty"
    text = re.sub(r"([<>|])", r"\\\1", row.doc)
    return f"| `{key}` | {kind}{unit} | {default} | {text}{least}{most} |\n"


if __name__ == "__main__":
    main()
