"""``pyspark-ckpt query advise``."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_ckpt.running.advising import advise
from pyspark_ckpt.terminal import print_json, print_table, print_text


def advise_on_partitions(
    checkpoint: str, progress: str | None, cores: int | None, settings: Mapping[str, str], *, as_json: bool
) -> int:
    """Print whether more partitions would help, and the figures."""
    advice = advise(checkpoint, progress=progress, cores=cores, options=settings)
    if as_json:
        return print_json(advice.to_json())
    print_text(str(advice))
    print()
    rows = [
        (str(each.number), each.name, str(each.partitions), sum(each.rows), max(each.rows), f"{each.skew:.2f}")
        for each in advice.states
    ]
    print_table(("operator", "name", "partitions", "stored rows", "in the largest", "over the mean"), rows)
    return 0
