"""Write docs/options.md from state_store/options.json, the table that the program itself reads.

``make docs`` runs this. A test fails if the page is not what this module writes.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from pyspark_ckpt.state_store.options import PREFIX, OptionRow, number_types, table

PAGE = Path(__file__).with_name("options.md")

NUMBERS = {"bytes": "a size in bytes", "seconds": "a time in seconds", "int": "a number"}


def _units(kind: str) -> str:
    """Return the units of a type, names for the same unit in one group."""
    groups: dict[int, list[str]] = {}
    for name, size in number_types()[kind].units.items():
        if name:
            groups.setdefault(size, []).append(f"`{name}`")
    units = ", ".join("/".join(names) for _, names in sorted(groups.items()))
    return f", or with a unit: {units}" if units else ""


def _join(keys: list[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys[:-1]) + f" and `{keys[-1]}`"


TYPES = "".join(f"| {kind} | {text}{_units(kind)} |\n" for kind, text in NUMBERS.items())
PROCESS = textwrap.fill(
    f"Options are read when a query starts. {_join([key for key, row in table().items() if row.process and row.group])} apply to the "
    "executor's process, which keeps those of its first query.",
    120,
    break_on_hyphens=False,
)

HEAD = f"""\
# Options

<!-- `make docs` writes this page from state_store/options.json -->

Set an option in snake case, or as a conf with the prefix `{PREFIX}`:

<!-- fragment -->
```python
ckpt.configure(SparkSession.builder, memory_limit="1g")
SparkSession.builder.config("{PREFIX}memoryLimit", "1g")
```

A query with an unknown key or a value out of range does not start.

| type | how to write it |
|---|---|
{TYPES}\

Numbers are whole: write `90s`, not `1.5m`. Units of sizes are powers of 1,024, also `kb` and `mb`. There may be a space
before the unit. Case does not count in units and listed values: `1G` is `1g`, `debug` is `DEBUG`.

{PROCESS}

Hardly anybody needs the *rare* ones.
"""

GUIDES = {
    "Memory and local disk": "[sizing](sizing.md), [state in memory](operators.md#state-in-memory)",
    "Where state is kept": "[storage](storage.md), [outages](outages.md)",
    "Snapshots, and how long a restore takes": "[sizing](sizing.md)",
    "What is kept and checked": "[the runbook](runbook.md)",
    "Changed programs and sinks": "[savepoints](savepoints.md), [sinks](sinks.md)",
    "The state server": "[deploying](deploying.md), [debugging](debugging.md)",
}
"""The parts of the page, each with the pages on which its options matter."""

TABLE = "| key | type | default | what it does |\n|---|---|---|---|\n"

TAIL = f"""
## Confs of Spark

| conf | what `configure()` does | meaning |
|---|---|---|
| `{PREFIX.removesuffix("ckpt.")}providerClass` | sets it | a *new* query's state store; a checkpoint remembers its own |
| `{PREFIX.removesuffix("ckpt.")}checkpointFormatVersion` | `2`, unless it is set; before Spark 4.1 nothing, so that it is `1` | `2`: the commit log names the winner of every commit. `1` works, too; from Spark 4.3 on, a query may change it |
| `spark.sql.streaming.minBatchesToRetain` | leaves it | how many versions below the newest one stay restorable |
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the text that the page must have now."""
    return HEAD + "".join(_part(name, guides) for name, guides in GUIDES.items()) + TAIL


def _part(name: str, guides: str) -> str:
    rows = {key: row for key, row in table().items() if row.group == name}
    lines = (_line(key, row) for key, row in sorted(rows.items(), key=lambda item: item[1].rare))
    return f"\n## {name}\n\nSee {guides}.\n\n{TABLE}" + "".join(lines)


def _line(key: str, row: OptionRow) -> str:
    kind = ", ".join(f"`{value}`" for value in row.values) if row.values else row.type
    unit = f" ({row.unit})" if row.unit not in {"", row.type} else ""
    least = f" At least {row.min}." if row.min else ""
    most = f" At most {row.max}." if row.max is not None else ""
    default = f"`{row.default}`" if row.default != "" else "empty"
    text = re.sub(r"([<>|])", r"\\\1", row.doc)
    rare = " *rare*" if row.rare else ""
    return f"| `{key}`{rare} | {kind}{unit} | {default} | {text}{least}{most} |\n"


if __name__ == "__main__":
    main()
