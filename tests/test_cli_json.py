"""What ``--json`` prints: one form for each thing, as docs/command-line.md says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.cli.main import main
from tests.compat.frozen import unpack
from tests.labs.saved_query import Query, written
from tests.offline.adopting.written import unpack_all
from tests.pages.documents import ROOT

FREE = {"key_schema", "value_schema", "key_encoder", "rows_by_key_groups", "sample"}
"""Fields whose content is not of this package, or has keys that are numbers."""
Parts = dict[str, set[str]]
"""Names of fields, by where they are: ``stores[].states[]``."""
EXPLAINED = "the same with `--dry-run`"
MIGRATIONS = """
from pyspark_ckpt.offline.writing.drafts.changes import Migration, Transform
ALL = [Migration("same words", [Transform("kinds", "words", lambda rows: rows)])]
"""
NOW = ("-o", "retentionGracePeriod=0")


def find_parts(value: Any, at: str = "", found: Parts | None = None) -> Parts:  # noqa: ANN401 - JSON
    """Return the fields of all objects within a value."""
    parts: Parts = {} if found is None else found
    for each in value if isinstance(value, list) else ():
        find_parts(each, f"{at}[]", parts)
    if isinstance(value, dict):
        parts.setdefault(at, set()).update(value)
        for name, each in value.items():
            if name not in FREE:
                find_parts(each, f"{at}.{name}".removeprefix("."), parts)
    return parts


def documented() -> dict[str, Parts]:
    """Fields by command, as the table of the document lists them."""
    section = (
        (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8").partition("### JSON")[2].partition("\n#")[0]
    )
    found: dict[str, Parts] = {}
    commands: list[str] = []
    for command, at, fields in re.findall(r"^\| (.*?)\| (.*?)\| (.*) \|$", section, re.MULTILINE)[1:]:
        if command.strip():
            commands = [EXPLAINED] if command.strip() == EXPLAINED else re.findall(r"`([^`]+)`", command)
        bare = re.sub(r"\([^)]*\)", "", fields)
        for each in commands:
            found.setdefault(each, {})[at.strip(" `")] = set(re.findall(r"`([^`]+)`", bare))
    return found


@pytest.fixture
def query(quick_path: Path) -> Query:
    return written(quick_path / "query", 2, batches=8)


def tell(capsys: pytest.CaptureFixture[str], *call: str) -> Any:  # noqa: ANN401 - JSON
    capsys.readouterr()
    assert main([*call, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.in_turn
def test_fields_are_those_that_are_documented(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    native, canonical, new = (str(quick_path / "saved" / name) for name in ("native", "canonical", "new"))
    frozen = str(unpack("v1", "keyed", quick_path / "keyed"))
    migrations = "--migrations", "steps:ALL"
    calls: list[tuple[str, tuple[str, ...]]] = [
        ("checkpoint list", (query.location,)),
        ("checkpoint inspect", (query.location, "--lineage", "--key-groups")),
        ("checkpoint inspect", (query.location,)),
        ("checkpoint verify", (query.location,)),
        ("query advise", (query.location,)),
        ("checkpoint gc", (query.location, "--dry-run", "--keep", "1", *NOW)),
        ("savepoint create", (query.location, native)),
        ("savepoint create", (query.location, canonical, "--kind", "canonical")),
        ("savepoint inspect", (native,)),
        ("savepoint verify", (native,)),
        ("savepoint verify", (canonical,)),
        ("savepoint restore", (canonical, new, "-n", "3")),
        ("checkpoint rescale", (query.location, f"{new}-2", "-n", "3")),
        ("checkpoint adopt", (str(unpack_all("4.3", quick_path / "spark") / "hdfs"), f"{new}-4")),
        ("checkpoint branch", (query.location, f"{new}-6")),
        ("checkpoint hand-back", (f"{new}-4", f"{new}-5")),
        ("savepoint migrate --dry-run", (frozen, f"{new}-7", *migrations)),
        ("savepoint migrate", (frozen, f"{new}-7", *migrations)),
        (EXPLAINED, ("checkpoint", "rescale", query.location, f"{new}-3", "-n", "3", "--dry-run")),
        ("savepoint delete", (native,)),
    ]
    (quick_path / "steps.py").write_text(MIGRATIONS)
    monkeypatch.chdir(quick_path)
    monkeypatch.syspath_prepend(str(quick_path))
    told: dict[str, Parts] = {}
    for command, arguments in calls:
        words = () if command == EXPLAINED else command.split()
        find_parts(tell(capsys, *words, *arguments), found=told.setdefault(command, {}))
    told["savepoint create"] = told["savepoint inspect"] = {**told["savepoint create"], **told["savepoint inspect"]}
    assert main(["state", "count", frozen, "--uid", "kinds", "--state", "words", "--format", "json"]) == 0
    told["state count --format json"] = find_parts(json.loads(capsys.readouterr().out))
    query.place.delete("offsets/7")
    told["checkpoint repair"] = find_parts(tell(capsys, "checkpoint", "repair", query.location, "--apply"))
    assert told == documented()


def test_all_commands_name_a_store_and_a_query_in_one_way(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(quick_path / "saved")
    expected = {(each.operator, each.partition, each.name) for each in query.identities()}
    for call in (
        ("checkpoint", "list", query.location),
        ("checkpoint", "inspect", query.location),
        ("checkpoint", "verify", query.location),
        ("checkpoint", "gc", query.location, "--dry-run"),
        ("savepoint", "create", query.location, saved),
        ("savepoint", "inspect", saved),
        ("savepoint", "verify", saved),
    ):
        found = tell(capsys, *call)
        assert found["query_id"] == "7f4a9a0e-0000-4000-8000-123456789abc", call
        assert {(each["operator"], each["partition"], each["store"]) for each in found["stores"]} == expected, call
    (listed,) = tell(capsys, "savepoint", "list", str(quick_path), "-o", "placeTimeout=60")
    inspected = tell(capsys, "savepoint", "inspect", saved)
    assert {**listed, "sources": inspected["sources"]} == {**inspected, "savepoint": "saved"}


def test_every_command_names_the_place_of_a_savepoint_in_one_way(
    query: Query, quick_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(quick_path)
    for call in (("create", query.location, "saved"), ("inspect", "saved"), ("verify", "saved"), ("delete", "saved")):
        if call[0] == "delete":
            for folder in (".", "saved"):
                (listed,) = tell(capsys, "savepoint", "list", folder)
                assert listed["place"] == f"{quick_path}/saved"
        found = tell(capsys, "savepoint", *call)
        assert (found["savepoint"], found["place"]) == ("saved", f"{quick_path}/saved"), call


def test_lineage_is_a_list_in_the_order_of_a_restore(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    for store in tell(capsys, "checkpoint", "inspect", query.location, "--lineage")["stores"]:
        versions = [each["version"] for each in store["lineage"]]
        first, *others = [each["kind"] for each in store["lineage"]]
        assert versions == list(range(versions[0], query.version + 1))
        assert first == ("delta" if versions[0] == 1 else "snapshot") or versions == [1]
        assert set(others) <= {"delta"}
        assert store["lineage"][-1]["commit_id"] == store["commit_id"]
