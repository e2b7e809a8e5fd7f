"""The table of metrics, what the state server sends, and what the documentation says are the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.labs.lab import Lab, Server
from tests.labs.task_lab import TaskLab, at_us
from tests.operators.task.test_partition_task import ENOUGH, OUTPUT, Commands

ROOT = Path(__file__).parents[1]
TABLE = json.loads((ROOT / "state_store/metrics.json").read_text(encoding="utf-8"))
NAMES = [row["name"] for row in TABLE["metrics"]]


def sources(call: str) -> set[str]:
    """What the table knows of the answer to this call."""
    return {row[call] for row in TABLE["metrics"] if call in row} | set(TABLE["unshown"][call])


def documented() -> list[str]:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(ckpt[A-Z]\w*)", page, re.MULTILINE)


def repeated(names: Iterable[str]) -> list[str]:
    seen = list(names)
    return sorted({name for name in seen if seen.count(name) > 1})


def test_each_row_says_what_it_counts_and_where_its_value_is_from() -> None:
    assert repeated(NAMES) == []
    for row in TABLE["metrics"]:
        assert row.keys() <= {"name", "kind", "text", "begin", "commit", "shim", "store", "now", "live", "up_to_ms"}
        assert row["kind"] in ("sum", "size", "time")
        assert row.keys() & {"begin", "commit", "shim", "live"}, row


def test_the_documented_metrics_are_those_of_the_table() -> None:
    assert repeated(documented()) == []
    assert sorted(documented()) == sorted(NAMES)


def test_the_table_has_each_number_that_the_state_server_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, set[str]] = {"begin": set(), "commit": set()}
    call = Server.call

    def record(server: Server, method: str, **request: object) -> dict[str, Any]:
        answer = call(server, method, **request)
        if method in sent:
            sent[method] |= answer["metrics"].keys()
        return answer

    monkeypatch.setattr(Server, "call", record)
    keyed = TaskLab(tmp_path / "keyed", Commands(), OUTPUT)
    row = ("user", 1, at_us(1), "near|register|")
    keyed.run([row], watermark_ms=5, now_ms=5, memory_bytes=ENOUGH)
    keyed.close()
    lab = Lab(tmp_path / "native")
    lab.grow(lab.open(fmt=1), 2)
    lab.restart(lose_local=True)
    lab.begin(lab.open(fmt=1), 2).commit()
    lab.server.stores.shut_down()
    assert sent == {call: sources(call) for call in sent}
