"""What the pages show of checkpoints, as HTML and as JSON."""

from __future__ import annotations

import html
import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.operators.declarations.states import MapState
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.web import lookups, subjects
from tests.compat.frozen import unpack
from tests.labs.saved_query import Query, written
from tests.offline.reading.written import Written
from tests.services.s3_server import S3Service
from tests.web.conftest import IMAGE, LARGE, SCRIPT, STATES, Serve

PAGES = ("", "/progress", "/history", "/states", "/partitions", "/kept", "/key", "/diff")


def read(client: httpx.Client, path: str, **given: str | int) -> Any:  # noqa: ANN401 - JSON
    answer = client.get(path, params={**given, "format": "json"})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def query(quick_path: Path) -> Query:
    return written(quick_path / "query", 4, batches=5, packed=0)


def test_the_overview_says_how_far_the_query_has_come(serve: Serve, query: Query) -> None:
    client = serve(query.location)
    (told,) = read(client, "/")["checkpoints"]
    assert (told["version"], told["batch"], told["kind"], told["checkpoint_format"]) == (5, 4, "checkpoint", 2)
    assert [each["partitions"] for each in told["operators"]] == [4, 1, 4]
    assert told["look"]["stores"] == told["stores"] == len(list(query.identities()))
    assert told["health"] == [{"level": "good", "text": "no problem found"}]
    query.run()
    assert "no problem found" in client.get("/").text


def test_the_worst_checkpoint_is_shown_first_and_levels_are_summed(serve: Serve, quick_path: Path) -> None:
    fine = written(quick_path / "fine", 1, operators=(1,)).location
    late = written(quick_path / "late", 1, operators=(1,), packed=0).location
    ckpt.savepoint(late, quick_path / "saved")
    next(Path(late, "state").rglob(f"{3:020d}-*.delta")).unlink()
    told = read(serve(fine, quick_path / "saved", late), "/")
    assert [each["level"] for each in told["checkpoints"]] == ["good", "unread", "bad"]
    assert list(told["levels"].items()) == [("bad", 1), ("unread", 1), ("good", 1)]
    text = serve(fine, quick_path / "saved", late).get("/").text
    assert re.findall(r'<h2 id="c(\d)"', text) == ["2", "1", "0"]
    page = re.sub(r"<[^>]*>", "", text)
    assert "3 checkpoints: 1 wrong, 1 not read, 1 ok" in page
    assert "not read its files were listed, not read" in page


def test_times_of_a_copied_checkpoint_are_not_shown(serve: Serve, query: Query, quick_path: Path) -> None:
    """Its files have the times of copying, in which a batch takes 0 ms."""
    for batch in range(query.version):
        entry = Path(query.location, "offsets", str(batch))
        text = entry.read_text()
        planned_ms = json.loads(text.split("\n")[1])["batchTimestampMs"]
        entry.write_text(text.replace(str(planned_ms), str(planned_ms - 3_600_000)))
    copy = shutil.copytree(query.location, quick_path / "copy")
    client = serve(copy)
    (told,) = read(client, "/")["checkpoints"]
    assert (told["is_copied"], told["committed_s"], told["interval_s"]) == (True, None, None)
    assert {each["batch_s"] for each in read(client, "/c/0/history")["versions"]} == {None}
    assert "a copy has the times of copying" in client.get("/c/0").text
    assert read(client, "/c/0/progress")["verdict"]["busy_share"] is None


def test_history_counts_what_every_version_has_written(serve: Serve, query: Query) -> None:
    client = serve(query.location)
    told = read(client, "/c/0/history")
    folder = Path(query.location)
    assert told["is_whole"]
    assert [each["version"] for each in told["versions"]] == [5, 4, 3, 2, 1]
    stores = len(list(query.identities()))
    for each in told["versions"]:
        deltas = list(folder.rglob(f"{each['version']:020d}-*.delta"))
        manifests = list(folder.rglob(f"{each['version']:020d}-*.snapshot"))
        assert (each["commits"], each["snapshots"]) == (len(deltas), len(manifests))
        assert each["commits"] == stores
        assert each["delta_bytes"] == sum(path.stat().st_size for path in deltas)
    tables = list(folder.rglob("sst/*.sst"))
    assert sum(each["table_files"] for each in told["versions"]) == len(tables) == told["kept"]["table_files"]
    assert sum(each["uploaded_bytes"] for each in told["versions"]) == told["kept"]["size_bytes"]


def test_the_oldest_snapshot_is_not_said_to_have_written_what_it_took_over(serve: Serve, quick_path: Path) -> None:
    """Retention deletes manifests of earlier snapshots, and keeps the table files that later ones have in common."""
    query = Query(str(quick_path / "query"), 2, operators=(0,), packed=0)
    stores = list(query.identities())
    uploaded, before_s = {0: 0}, 0.0
    for batch in range(1, 7):
        query.run(rows=400 if batch == 1 else 4)
        if batch % 2 == 0:
            for each in stores:
                query.snapshot(each)
        uploaded[batch] = sum(path.stat().st_size for path in Path(query.location, "state").rglob("sst/*.sst"))
        before_s = time.time() if batch == 2 else before_s
        time.sleep(0.1)
    for each in stores:
        for path in Path(query.location, store_folder(each)).iterdir():
            if path.name.startswith(tuple(f"{version:020d}-" for version in (1, 2, 3))):
                path.unlink()
    versions = {each["version"]: each for each in read(serve(query.location), "/c/0/history")["versions"]}
    manifests = {
        version: sum(path.stat().st_size for path in Path(query.location).rglob(f"{version:020d}-*.snapshot"))
        for version in versions
    }
    for version in (4, 6):
        assert versions[version]["snapshot_bytes"] - manifests[version] == uploaded[version] - uploaded[version - 2]
    assert versions[4]["snapshot_s"] < versions[4]["committed_s"] - before_s, "not since the first one"


def test_states_and_partitions_have_the_rows_of_the_commits(serve: Serve, query: Query) -> None:
    client = serve(query.location)
    states = {
        (each["operator"], state["store"], state["state"]): state["rows"]
        for each in read(client, "/c/0/states")["operators"]
        for state in each["states"]
    }
    for (operator, store, state), rows in query.rows.items():
        if "expiry" not in state:
            assert states[operator, store, state] == len(rows)
    for each in read(client, "/c/0/partitions")["operators"]:
        for one in each["partitions"]:
            own = [
                meta
                for name, meta in query.metas.items()
                if (name.operator, name.partition) == (each["operator"], one["partition"])
            ]
            assert one["rows"] == sum(meta.rows for meta in own)
            assert one["restore_s"] > 0
    groups = read(client, "/c/0/partitions", groups=0)["groups"]["rows"]
    assert sum(groups.values()) == sum(meta.rows for name, meta in query.metas.items() if name.operator == 0)
    page = client.get("/c/0/partitions").text
    assert len(re.findall(r"<rect ", page)) == 2 * (4 + 1 + 4)


def test_a_dry_run_tells_what_the_clean_up_deletes_and_deletes_nothing(serve: Serve, query: Query) -> None:
    checkpoint = Checkpoint(query.location, parse({}))
    before = {path: path.stat().st_mtime_ns for path in Path(query.location).rglob("*") if path.is_file()}
    client = serve(query.location, options={"retentionGracePeriod": "0"})
    told = read(client, "/c/0/kept", dry_run=1, keep=1)["garbage"]
    assert told["objects"] > 0
    assert told["objects"] == sum(each["objects"] for each in told["kinds"])
    assert {path: path.stat().st_mtime_ns for path in Path(query.location).rglob("*") if path.is_file()} == before
    pin = Pins(checkpoint.place).add(3, 600)
    pinned = serve(query.location)
    assert [each["version"] for each in read(pinned, "/c/0/kept")["pins"]] == [3]
    assert pin.id in pinned.get("/c/0/kept").text


def test_what_costs_much_is_not_done_again_at_every_refresh(serve: Serve, query: Query) -> None:
    """A browser that is left open must not read all rows, or snapshots, every few seconds."""
    client = serve(query.location)
    for page in ("/c/0/partitions", "/c/0/kept"):
        assert 'data-refresh="5"' in client.get(page).text
    for page, given, answer in (
        ("/c/0/partitions", {"groups": "0"}, "groups"),
        ("/c/0/kept", {"dry_run": "1", "keep": "1"}, "garbage"),
    ):
        before = read(client, page, **given)[answer]
        assert 'data-refresh="0"' in client.get(page, params=given).text
        query.run()
        time.sleep(subjects.FACTS_S + 0.1)
        assert read(client, page)["checkpoint"]["version"] > before["version"]
        assert read(client, page, **given)[answer] == before


def test_savepoints_are_listed_and_shown(serve: Serve, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, batches=2, operators=(1,))
    folder = quick_path / "saved"
    ckpt.savepoint(query.location, folder / "native")
    ckpt.savepoint(query.location, folder / "canonical", kind="canonical")
    (folder / "broken").mkdir()
    (folder / "broken" / "savepoint.json").write_text("{}")
    client = serve(query.location, folder / "native", folder / "canonical", savepoints=[folder, quick_path / "none"])
    found, none = read(client, "/c/0/kept")["folders"]
    assert {each["savepoint"]: each["problem"] is None for each in found["savepoints"]} == {
        "native": True,
        "canonical": True,
        "broken": False,
    }
    assert none["savepoints"] == []
    kinds = [each["kind"] for each in read(client, "/")["checkpoints"]]
    assert kinds == ["checkpoint", "native savepoint", "canonical savepoint"]
    rows = [
        [
            (state["state"], state["rows"])
            for each in read(client, f"/c/{n}/states")["operators"]
            for state in each["states"]
            if state["state"] != "default"  # rows of Spark's that belong to partitions, which a canonical one lacks
        ]
        for n in range(3)
    ]
    assert sorted(rows[0]) == sorted(rows[1]) == sorted(rows[2])
    for number in range(3):
        for page in PAGES:
            assert client.get(f"/c/{number}{page}").status_code == 200, (number, page)


def find_state(client: httpx.Client, name: str) -> int:
    states = read(client, "/c/0/key")["states"]
    return int(next(each["number"] for each in states if each["state"] == name))


def test_a_key_is_found_by_typed_fields(page: httpx.Client) -> None:
    views = find_state(page, "views")
    told = read(page, "/c/0/key", state=views, k0="plain", k1="2", find=1)
    assert [field["type"] for field in told["chosen"]["key"]] == ["string", "int"]
    value = told["found"]["columns"].index("value")
    assert [row[value]["text"] for row in told["found"]["rows"]] == ["7"]
    assert read(page, "/c/0/key", state=views, k0="nobody", k1="2", find=1)["found"]["rows"] == []
    for wrong in ({"k1": "two"}, {"k1": "9" * 30}, {"k1": ""}, {"k1": "1e5"}):
        told = read(page, "/c/0/key", state=views, k0="plain", find=1, **wrong)
        assert told["problem"]["kind"] == "InvalidInputError"
    assert read(page, "/c/0/key", state=views, n0=1, k1="2", find=1)["found"]["rows"] == [], "null is a key, too"


def test_a_state_links_to_the_look_up_of_its_keys(page: httpx.Client) -> None:
    text = page.get("/c/0/states").text
    links = [html.unescape(each) for each in re.findall(r'href="(/c/0/key\?[^"]*)"', text)]
    assert len(links) == len(STATES)
    chosen = {
        page.get(link, params={**httpx.URL(link).params, "format": "json"}).json()["chosen"]["state"] for link in links
    }
    assert chosen == set(STATES)
    assert page.get("/c/0/key", params={"operator": 0, "store": "default", "name": "none"}).status_code == 400


def test_of_a_hot_key_only_the_first_rows_are_read(serve: Serve, quick_path: Path) -> None:
    made = Written(quick_path / "hot", {"who": pa.string()})

    def fill(states: Any) -> None:  # noqa: ANN401
        for number in range(50_000):
            states.seen.put(f"{number:06d}", "x" * 100)

    made.batch(
        {"seen": (MapState("seen", "string", "string"), {"key": pa.string(), "value": pa.string()})}, [(("a",), fill)]
    )
    made.close()
    client = serve(made.path)
    answer = client.get("/c/0/key", params={"state": 0, "k0": "a", "find": 1})
    assert "the first 200 rows" in answer.text
    assert "There may be more" in answer.text
    found = read(client, "/c/0/key", state=0, k0="a", find=1)["found"]
    assert (len(found["rows"]), found["is_all"]) == (200, False)


def test_a_large_value_is_cut(page: httpx.Client) -> None:
    answer = page.get("/c/0/key", params={"state": find_state(page, "large"), "k0": "large", "k1": "3", "find": "1"})
    assert f"{LARGE:,} characters" in answer.text
    assert len(answer.content) < 20_000


def test_versions_are_compared(page: httpx.Client) -> None:
    large = find_state(page, "large")
    told = read(page, "/c/0/diff", state=large, a=1, b=2, find=1)["found"]
    assert [row[0]["text"] for row in told["rows"]] == ["added"]
    assert told["is_all"]
    views = find_state(page, "views")
    assert read(page, "/c/0/diff", state=views, a=1, b=2, find=1)["found"] | {"columns": 0} == {
        "columns": 0,
        "rows": [],
        "is_all": True,
        "limit": 50,
        "version_a": 1,
        "version_b": 2,
    }
    assert read(page, "/c/0/diff", state=views, a=1, b=99, find=1)["problem"]["message"].count("no version 99") == 1


def test_a_long_comparison_ends_with_what_was_found(
    serve: Serve, frozen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(frozen)
    (number,) = (each["number"] for each in read(client, "/c/0/key")["states"] if each["state"] == "seen")
    monkeypatch.setattr(lookups, "DIFF_S", -1.0)
    found = read(client, "/c/0/diff", state=number, a=1, find=1)["found"]
    assert (found["rows"], found["is_all"]) == ([], False)
    told = client.get("/c/0/diff", params={"state": number, "a": 1, "find": 1}).text
    assert "There may be more" in told
    assert "No difference so far" in told
    monkeypatch.setattr(lookups, "DIFF_S", 60.0)
    found = read(client, "/c/0/diff", state=number, a=1, find=1)["found"]
    assert (found["rows"] != [], found["is_all"]) == (True, True)


def test_no_more_differences_are_shown_than_asked_for(serve: Serve, frozen: Path) -> None:
    client = serve(frozen)
    states = read(client, "/c/0/diff")["states"]
    most = max(states, key=lambda each: each["rows"])["number"]
    told = read(client, "/c/0/diff", state=most, a=1, rows=2, find=1)["found"]
    assert len(told["rows"]) == 2
    assert not told["is_all"]


def test_names_keys_and_values_are_text_and_nothing_else(page: httpx.Client) -> None:
    named = find_state(page, SCRIPT)
    asked: dict[str, str | int] = {"state": named, "k0": SCRIPT, "k1": "1", "find": "1"}
    texts = [page.get(f"/c/0{each}").text for each in PAGES]
    texts += [page.get("/").text, page.get("/c/0/key", params=asked).text]
    texts.append(page.get("/c/0/diff", params={"state": named, "a": 1, "b": 2, "find": 1}).text)
    texts.append(page.get("/c/0/key", params={**asked, "k1": SCRIPT}).text)
    texts.append(page.get("/c/0/diff", params={"a": SCRIPT}).text)
    for text in texts:
        assert "<img" not in text
        assert "<b>" not in text
        assert text.count("<script") == 1
    assert "&lt;img src=x onerror=alert(1)&gt;" in texts[PAGES.index("/states")]
    found = read(page, "/c/0/key", **asked)["found"]["rows"]
    assert IMAGE in [cell["text"] for cell in found[0]]


def test_control_characters_are_shown_as_such(serve: Serve, quick_path: Path) -> None:
    folder = quick_path / "right\N{RIGHT-TO-LEFT OVERRIDE}left\x1b[2J"
    text = serve(folder).get("/").text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert "\x1b" not in text
    assert "\\u202e" in text


def test_many_requests_at_once_share_what_is_read(serve: Serve, query: Query) -> None:
    client = serve(query.location)
    paths = [f"/c/0{page}" for page in PAGES] * 7 + ["/"]
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda path: client.get(path).status_code, paths))
    assert set(answers) == {200}


def test_a_query_without_batches_and_one_without_state_have_pages(serve: Serve, quick_path: Path) -> None:
    new = Query(str(quick_path / "new"), 2).location
    without = written(quick_path / "without", 1, operators=(), batches=1).location
    client = serve(new, without)
    for number in range(2):
        for page in PAGES:
            assert client.get(f"/c/{number}{page}").status_code == 200, (number, page)
    first, second = read(client, "/")["checkpoints"]
    assert first["health"] == [{"level": "notice", "text": "no batch is committed yet"}]
    assert second["operators"] == []


@pytest.mark.parametrize("remote", [False, True])
def test_checkpoints_in_s3(serve: Serve, s3: S3Service, quick_path: Path, *, remote: bool) -> None:
    options: Any = {**s3.options, **({"remote": s3.new_folder()} if remote else {})}
    location = str(quick_path / "query") if remote else s3.new_folder()
    query = written(location, 3, batches=3, **options)
    client = serve(location, options=s3.options)
    (told,) = read(client, "/")["checkpoints"]
    assert (told["version"], told["look"]["missing"]) == (query.version, [])
    for page in PAGES:
        assert client.get(f"/c/0{page}").status_code == 200
    assert sum(each["commits"] for each in read(client, "/c/0/history")["versions"]) == 3 * len(query.metas)


def test_checkpoint_format_1_is_named(serve: Serve, quick_path: Path) -> None:
    location = written(quick_path / "one", 2, checkpoint_format=1).location
    (told,) = read(serve(location), "/")["checkpoints"]
    assert (told["checkpoint_format"], told["level"]) == (1, "good")


def test_json_is_plain_json(serve: Serve, query: Query) -> None:
    client = serve(query.location)
    for page in PAGES:
        text = client.get(f"/c/0{page}?format=json").text
        assert json.loads(text, parse_constant=pytest.fail)


def test_all_rows_of_a_key_of_a_join_are_found_without_their_index(serve: Serve, tmp_path: Path) -> None:
    client = serve(unpack("v1", "join", tmp_path / "join"))
    states = read(client, "/c/0/key")["states"]
    (chosen,) = (each for each in states if each["store"] == "left-keyWithIndexToValue")
    assert [(each["column"], each["is_optional"]) for each in chosen["key"]] == [("field0", False), ("index", True)]
    assert "empty: any" in client.get("/c/0/key", params={"state": chosen["number"]}).text
    for index in ("", "0"):
        found = read(client, "/c/0/key", state=chosen["number"], find=1, k0=21, k1=index)["found"]
        (row,) = found["rows"]
        assert json.loads(row[0]["text"]) == {"field0": 21, "index": 0}
    for given, text in (({"k0": "", "k1": ""}, "bigint"), ({"k0": "21", "k1": "x"}, "bigint")):
        assert text in read(client, "/c/0/key", state=chosen["number"], find=1, **given)["problem"]["message"]
