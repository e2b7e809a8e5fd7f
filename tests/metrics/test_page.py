"""The page about metrics names every series, and the page about monitoring every alert."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_ckpt.metrics.families import STANDARD, all_families, own_families

ROOT = Path(__file__).parents[2]
METRICS = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
MONITORING = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")


def test_the_page_has_the_series_of_each_metric() -> None:
    rows = dict(re.findall(r"^\| `(\w+)[^`]*`(?:, `[^`]*`)?(?:<br>| \| )`(ckpt_\w+)` \|", METRICS, re.MULTILINE))
    expected = {name: family.series_name for name, family in {**own_families(), **STANDARD}.items()}
    assert {name: series for name, series in rows.items() if name in expected} == expected


def test_the_page_names_every_series_and_no_others() -> None:
    known = {family.series_name for family in all_families()}
    assert set(re.findall(r"`(ckpt_\w+)`", METRICS)) == known
    assert set(re.findall(r"`(ckpt_\w+)`", MONITORING)) <= known


def test_the_page_says_what_to_do_about_each_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "pyspark_ckpt/metrics/alerts.yml").read_text(encoding="utf-8"))
    assert re.findall(r"^\| `(Ckpt\w+)` \|", MONITORING, re.MULTILINE) == alerts
