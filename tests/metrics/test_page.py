"""The page about monitoring names every series and every alert."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_ckpt.metrics.families import STANDARD, all_families, own_families

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")


def test_the_page_has_the_series_of_each_metric() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(ckpt_\w+)` \|$", PAGE, re.MULTILINE))
    expected = {name: family.series_name for name, family in {**own_families(), **STANDARD}.items()}
    assert {name: series for name, series in rows.items() if name in expected} == expected


def test_the_page_names_every_series_and_no_others() -> None:
    assert set(re.findall(r"`(ckpt_\w+)`", PAGE)) == {family.series_name for family in all_families()}


def test_the_page_says_what_to_do_about_each_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "pyspark_ckpt/metrics/alerts.yml").read_text(encoding="utf-8"))
    assert re.findall(r"^\| `(Ckpt\w+)` \|", PAGE, re.MULTILINE) == alerts
