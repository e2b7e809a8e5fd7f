"""The board and the alerts: they name what is exported, and a real Prometheus takes them.

Prometheus and its promtool are looked for on PATH and in .tools/bin. Where there is none, the test says so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.metrics import prometheus
from pyspark_ckpt.metrics.families import all_families, own_families
from pyspark_ckpt.metrics.series import Series
from tests.metrics.events import QUERY, TARGET_S, add, batch, operator
from tests.services.ports import find_free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "pyspark_ckpt/metrics"
ALERTS = FOLDER / "alerts.yml"
BOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
EXPORTED = {family.series_name: family for family in all_families()}
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
_LABELS = re.compile(r"\b(?:by|on|group_left|group_right) \(([^)]*)\)")
_NAMED = re.compile(r"\{\{([^}]+)\}\}")


def find_tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(ROOT / ".tools/bin"))
    if found is None:
        pytest.skip(f"NOT RUN: there is no {name} on PATH or in .tools/bin. CONTRIBUTING.md says how to get it.")
    return found


def promtool(*arguments: str) -> None:
    done = subprocess.run([find_tool("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bckpt_\w+", expression))


def test_the_board_and_the_alerts_name_only_what_is_exported() -> None:
    named = set().union(*(names_in(expression) for _, expression in QUERIES), names_in(ALERTS.read_text("utf-8")))
    assert named <= EXPORTED.keys()
    assert len(QUERIES) >= 30


def test_the_board_and_the_alerts_show_what_can_go_wrong() -> None:
    watched = {
        *("ckptRestoreForecastMs", "ckptDeltasSinceSnapshot", "ckptLateRows", "ckptLateOutputRows", "ckptUploadTimeMs"),
        *("ckptDamagedObjects", "ckptDamagedCopies", "ckptSpilledRuns", "ckptMemoryFallbacks", "ckptPlaceWaitTimeMs"),
    }
    names = {own_families()[name].series_name for name in watched} | {"ckpt_batch_duration_seconds_total"}
    assert names <= set().union(*(names_in(expression) for _, expression in QUERIES))
    assert names <= names_in(ALERTS.read_text("utf-8"))


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_labels_in_a_query_of_the_board_are_those_of_its_series(title: str, expression: str) -> None:
    labels = set().union(*(EXPORTED[name].labels for name in names_in(expression)))
    grouped = {label for labels in _LABELS.findall(expression) for label in labels.replace(" ", "").split(",")} - {""}
    assert grouped <= labels
    panel = next(panel for panel in PANELS if panel["title"] == title)
    legends = [target["legendFormat"] for target in panel["targets"] if target["expr"] == expression]
    assert {label for legend in legends for label in _NAMED.findall(legend)} <= labels
    assert 'query=~"$query"' in expression


def test_each_panel_has_a_place_and_a_number_of_its_own() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    places: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not places & cells
        assert at["x"] + at["w"] <= 24
        places |= cells


def test_promtool_takes_the_alerts() -> None:
    promtool("check", "rules", str(ALERTS))


def test_each_alert_fires_on_what_it_is_about(tmp_path: Path) -> None:
    cases = (Path(__file__).parent / "alerts_test.yml").read_text("utf-8")
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS.read_text("utf-8")))
    assert set(re.findall(r"alertname: (\w+)", cases)) == alerts
    (tmp_path / "alerts_test.yml").write_text(cases.replace("RULES", str(ALERTS)), encoding="utf-8")
    promtool("test", "rules", str(tmp_path / "alerts_test.yml"))


@pytest.fixture
def scraping(tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that has scraped the series of a query."""
    found = find_tool("prometheus")
    series = Series()
    series.start(QUERY, "run-1", "visits", TARGET_S)
    own = dict.fromkeys(own_families(), 1) | {"ckptRestoreForecastMs.partition_0_default": 900, "visits/odd": 2}
    own.pop("ckptRestoreForecastMs")
    add(series, batch(operator(**own)))
    export = prometheus.ServerExport(series, "127.0.0.1", 0)
    port = find_free_port()
    target = export.url.removeprefix("http://").removesuffix("/metrics")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "spark", "static_configs": [{"targets": [target]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    log = tmp_path / "prometheus.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                found,
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for_scrape(address, process, log)
            yield address
        finally:
            process.terminate()
            process.wait(30)
            export.close()


def _wait_for_scrape(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            if ask(address, "ckpt_query_running"):
                return
        except OSError:  # it starts
            pass
        time.sleep(0.1)
    raise AssertionError(f"no scrape in 30 s: {log.read_text()}")


def ask(address: str, expression: str) -> list[Any]:
    with urllib.request.urlopen(f"{address}/api/v1/query?query={urllib.parse.quote(expression)}", timeout=10) as answer:  # noqa: S310
        read = json.load(answer)
    assert read["status"] == "success", read
    return list(read["data"]["result"])


def test_a_real_prometheus_scrapes_and_answers_every_query_of_the_board(scraping: str) -> None:
    for family in all_families():
        name = family.series_name
        if name not in {"ckpt_user_counter_subtractions_total", "ckpt_query_last_exception_timestamp_seconds"}:
            assert ask(scraping, name) or name == "ckpt_spark_metric", name
    for _, expression in QUERIES:
        whole = expression.replace("$query", ".*").replace("$__rate_interval", "1m").replace("$__range", "1h")
        assert "$" not in whole
        ask(scraping, whole)
    (up,) = ask(scraping, "up")
    assert up["value"][1] == "1"
    shown = ask(scraping, 'ckpt_upload_seconds_total{uid="visits", operator_name="keyed"}')
    assert [each["value"][1] for each in shown] == ["0.001"]
