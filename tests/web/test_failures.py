"""What goes wrong with checkpoints is shown as a page that says so, and ends neither other pages nor the process."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.state_store.format.names import PROVIDER_CONF
from pyspark_ckpt.web import application, history, subjects, survey
from tests.labs.lab import damage
from tests.labs.saved_query import Query, written
from tests.services.ports import find_free_port
from tests.web.conftest import Serve, open_client
from tests.web.test_pages import PAGES, read


@pytest.fixture
def query(quick_path: Path) -> Query:
    return written(quick_path / "query", 2, batches=4, packed=0)


@pytest.fixture(autouse=True)
def no_defect(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No page fails for a reason that is not explained."""
    yield
    assert not [
        each for each in caplog.get_records("call") if each.name == "pyspark_ckpt.web" and each.levelno >= logging.ERROR
    ]


def read_all(client: httpx.Client, number: int = 0, status: set[int] | None = None) -> str:
    """All pages of a checkpoint, which have one of the given statuses and no stack trace."""
    texts = []
    for page in PAGES:
        answer = client.get(f"/c/{number}{page}")
        assert answer.status_code in (status or {400, 404, 502, 503}), (page, answer.text)
        assert "Traceback" not in answer.text
        assert 'class="problem"' in answer.text
        texts.append(answer.text)
    overview = client.get("/")
    assert overview.status_code == 200
    return overview.text + "".join(texts)


def test_what_is_no_checkpoint_is_named_beside_those_that_are(serve: Serve, quick_path: Path, query: Query) -> None:
    (quick_path / "empty").mkdir()
    (quick_path / "file").write_text("text")
    client = serve(query.location, quick_path / "empty", quick_path / "none", quick_path / "file")
    for number in (1, 2, 3):
        read_all(client, number)
    checkpoints = read(client, "/")["checkpoints"]
    assert ["error" in each for each in checkpoints] == [False, True, True, True]
    assert checkpoints[0]["batch"] == 3


@pytest.mark.parametrize("name", ["metadata", "commits/3", "offsets/3", "state/0/_metadata/metadata"])
def test_a_damaged_file_of_the_query_is_named(serve: Serve, query: Query, name: str) -> None:
    Path(query.location, name).write_bytes(b"\0damaged")
    client = serve(query.location)
    assert "damaged" in client.get("/").text or name in client.get("/").text
    for page in PAGES:
        answer = client.get(f"/c/0{page}")
        assert "Traceback" not in answer.text
        assert answer.status_code in {200, 400, 502}


@pytest.mark.parametrize("suffix", ["delta", "snapshot", "sst"])
def test_damaged_objects_of_a_store_are_named(serve: Serve, query: Query, suffix: str) -> None:
    for path in Path(query.location, "state/2").rglob(f"*.{suffix}"):
        damage(path)
    client = serve(query.location)
    for page in (
        *PAGES,
        "/partitions?groups=2",
        "/kept?dry_run=1&keep=1",
        "/diff?state=0&find=1",
        "/key?state=0&find=1",
    ):
        answer = client.get(f"/c/0{page}")
        assert "Traceback" not in answer.text
        assert answer.status_code in {200, 404, 502}, page
    if suffix == "delta":  # an older snapshot, or the deltas alone, take the place of a damaged one
        assert "damaged" in client.get("/c/0/partitions?groups=2").text


def test_a_damaged_store_does_not_hide_the_others(serve: Serve, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(query.location)
    states = [each["whose"] for each in read(client, "/c/0/key")["states"]]
    paths = list(Path(query.location, "state/2/1").glob(f"{4:020d}-*.delta"))
    whole = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(path.read_bytes()[:20])
    client = serve(query.location)
    for page in ("states", "partitions"):
        told = read(client, f"/c/0/{page}")
        assert [(each["operator"], each["partition"]) for each in told["problems"]] == [(2, 1)]
        assert [each["operator"] for each in told["operators"]] == [0, 1, 2]
        assert "1 store of 7 cannot be read, and is not part of what is shown" in client.get(f"/c/0/{page}").text
    assert [each["whose"] for each in read(client, "/c/0/key")["states"]] == states
    assert client.get("/c/0/partitions?groups=2").status_code == 502, "no count without the rows of a store"
    assert sum(read(client, "/c/0/partitions", groups=0)["groups"]["rows"].values()) > 0
    assert read(client, "/")["checkpoints"][0]["health"][0]["text"] == "1 store cannot be read: see States"
    for path, content in zip(paths, whole, strict=True):
        path.write_bytes(content)
    monkeypatch.setattr(subjects, "DAMAGED_S", 0.001)
    assert read(client, "/c/0/states")["problems"] == []
    assert read(client, "/")["checkpoints"][0]["level"] == "good"


def test_a_store_without_the_newest_version_is_wrong(serve: Serve, query: Query) -> None:
    for path in Path(query.location, "state/2/1").glob(f"{4:020d}-*"):
        path.unlink()
    (told,) = read(serve(query.location), "/")["checkpoints"]
    assert told["level"] == "bad"
    assert "version 4 is missing in 1 store of 7" in told["health"][0]["text"]


def test_a_store_whose_newest_version_cannot_be_restored_is_wrong(serve: Serve, quick_path: Path) -> None:
    """Its newest delta is there, and one that it is built on is not."""
    query = Query(str(quick_path / "query"), 2, operators=(0,), packed=0)
    query.run(batches=4)
    (lost,) = Path(query.location, "state/0/1/right").glob(f"{3:020d}-*.delta")
    lost.unlink()
    (told,) = read(serve(query.location), "/")["checkpoints"]
    assert told["level"] == "bad"
    assert "version 4 cannot be restored in 1 store of 4" in told["health"][0]["text"]
    assert "partition 1, store 'right' (version 3)" in told["health"][0]["text"]


def test_old_deltas_that_a_glance_does_not_list_are_not_lost(serve: Serve, quick_path: Path) -> None:
    query = Query(str(quick_path / "query"), 2, operators=(0,), packed=0)
    query.run()
    for each in query.identities():
        query.snapshot(each)
    query.run(batches=survey.GLANCE_VERSIONS + 3)
    for path in Path(query.location, "state").rglob(f"{1:020d}-*.delta"):
        path.unlink()
    (told,) = read(serve(query.location), "/")["checkpoints"]
    assert (told["level"], told["look"]["most_deltas"]) == ("good", survey.GLANCE_VERSIONS + 3)


def test_a_lost_commit_log_is_wrong(serve: Serve, query: Query) -> None:
    shutil.rmtree(Path(query.location, "commits"))
    (told,) = read(serve(query.location), "/")["checkpoints"]
    assert (told["level"], told["health"][0]["text"]) == ("bad", "the commit log is lost")


def test_a_checkpoint_that_is_deleted_meanwhile(serve: Serve, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(query.location)
    assert read(client, "/c/0/history")["all_versions"] == 4
    real = history.tell_history

    def delete_first(*given: object) -> object:
        shutil.rmtree(Path(query.location), ignore_errors=True)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(application, "tell_history", delete_first)
    assert client.get("/c/0/history").status_code in {200, 400}
    for page in PAGES:
        answer = client.get(f"/c/0{page}")
        assert answer.status_code in {200, 400, 404, 502}
        assert "Traceback" not in answer.text


def test_versions_that_retention_deletes_meanwhile(serve: Serve, query: Query) -> None:
    client = serve(query.location)
    assert client.get("/c/0/states").status_code == 200
    for path in Path(query.location, "state").rglob("*.delta"):
        path.unlink()
    for path in Path(query.location, "state").rglob("*.snapshot"):
        path.unlink()
    for page in (*PAGES, "/partitions?groups=0", "/kept?dry_run=1"):
        assert client.get(f"/c/0{page}").status_code in {200, 404, 502}, page


def test_a_damaged_store_does_not_hide_what_a_clean_up_would_delete_of_the_others(serve: Serve, query: Query) -> None:
    for path in Path(query.location, "state/2/1").glob(f"{4:020d}-*"):
        path.unlink()
    client = serve(query.location, options={"retentionGracePeriod": "0"})
    page = "/c/0/kept?dry_run=1&keep=1"
    told = client.get(f"{page}&format=json").json()["garbage"]
    assert [(each["operator"], each["partition"]) for each in told["problems"]] == [(2, 1)]
    assert told["objects"] > 0
    shown = client.get(page).text
    assert "1 store of 7 cannot be read" in shown
    assert told["problems"][0]["message"].split(" ")[0] in shown


def test_many_services_that_do_not_answer_hold_up_no_other_checkpoint(
    serve: Serve, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"s3Endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "s3Region": "us-east-1"}
        away = [f"s3://bucket/{number}" for number in range(12)]
        client = serve(*away, query.location, options={**options, "placeTimeout": "30s"})
        told = read(client, "/")["checkpoints"]
        assert [each.get("is_opening") for each in told] == [True] * 12 + [None]
        assert told[12]["batch"] == 3
        assert client.get("/c/12/states", timeout=20).status_code == 200, "long before the services are given up"


def test_savepoints_that_are_still_listed_are_not_said_to_be_none(
    serve: Serve, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    monkeypatch.setattr(application, "LONG_WAIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"s3Endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "s3Region": "us-east-1"}
        client = serve(query.location, savepoints=["s3://bucket/savepoints"], options={**options, "placeTimeout": "4s"})
        assert read(client, "/c/0/kept")["is_listing"]
        assert "--savepoints" not in client.get("/c/0/kept").text


def test_a_query_that_was_set_back_is_shown_as_it_is_now(serve: Serve, quick_path: Path) -> None:
    """Batch 3 is run again with other rows: its version has the same number, and is another one."""
    query = written(quick_path / "query", 2, batches=3, packed=0)
    before = copy.deepcopy((query.metas, query.rows, query.version))
    query.run()
    client = serve(query.location)
    for page in PAGES:
        assert client.get(f"/c/0{page}").status_code == 200
    for log in ("commits", "offsets", "sources/0"):
        Path(query.location, log, "3").unlink()
    query.metas, query.rows, query.version = before
    query.run(rows=200)
    time.sleep(subjects.FACTS_S + 0.1)
    rows = sum(meta.rows for meta in query.metas.values())
    assert sum(each["rows"] for each in read(client, "/c/0/states")["operators"]) == rows
    partitions = [one for each in read(client, "/c/0/partitions")["operators"] for one in each["partitions"]]
    assert sum(each["rows"] for each in partitions) == rows
    assert read(client, "/c/0/key")["states"] == read(serve(query.location), "/c/0/key")["states"]


@pytest.mark.parametrize("name", [b"README", b"\xff.run", b"9999999999.run.tmp", b"99999999999.run"])
def test_a_foreign_file_beside_the_runs_is_no_run(serve: Serve, query: Query, name: bytes) -> None:
    runs = Path(query.location, "_ckpt/runs")
    runs.mkdir(parents=True, exist_ok=True)
    runs.joinpath(os.fsdecode(name)).write_bytes(b"x")
    (told,) = read(serve(query.location), "/")["checkpoints"]
    assert (told["batch"], told["run"]) == (3, None)


def test_state_of_sparks_own_provider_is_refused_with_what_to_do(serve: Serve, query: Query) -> None:
    conf = {"spark.sql.shuffle.partitions": "2"}
    conf |= {PROVIDER_CONF: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
    for batch in range(4):
        entry = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf}
        Path(query.location, f"offsets/{batch}").write_text(f"v1\n{json.dumps(entry)}\n-")
    assert "RocksDBStateStoreProvider" in read_all(serve(query.location))


def test_a_service_that_is_down(serve: Serve, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    options = {"s3Endpoint": f"http://127.0.0.1:{find_free_port()}", "s3Region": "us-east-1", "placeTimeout": "1s"}
    client = serve("s3://bucket/checkpoint", query.location, options=options)
    checkpoints = read(client, "/")["checkpoints"]
    assert checkpoints[0]["error"]["kind"] == "StorageError"
    assert checkpoints[1]["batch"] == 3
    assert client.get("/c/0/states").status_code == 503


def test_a_service_that_does_not_answer_does_not_hold_up_the_others(
    serve: Serve, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    monkeypatch.setattr("pyspark_ckpt.web.overview.FACTS_WAIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"s3Endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "s3Region": "us-east-1"}
        client = serve("s3://bucket/checkpoint", query.location, options={**options, "placeTimeout": "4s"})
        silent_one, other = read(client, "/")["checkpoints"]
        assert silent_one == {"number": 0, "location": "s3://bucket/checkpoint", "is_opening": True, "level": "unread"}
        assert other["batch"] == 3
        assert client.get("/c/0").status_code == 503


@pytest.mark.parametrize(
    "path",
    [
        "/c/1",
        "/c/-1",
        "/c/x",
        "/c/0/nothing",
        f"/c/{'9' * 5000}",
        "/c/0/kept?keep=0",
        "/c/0/kept?keep=x&dry_run=1",
        f"/c/0/kept?keep={'9' * 6000}",
        "/c/0/key?state=99&find=1",
        "/c/0/key?state=%E2%82%AC",
        "/c/0/key?state=\u00b2",
        "/c/0/diff?a=-1",
        "/c/0/diff?a=1&rows=1000000",
        "/c/0/diff?other=7",
        "/c/0/diff?a=99999999999999999999",
        "/c/0/partitions?groups=77",
        "/c/0/partitions?groups=%00",
        "/c/0%00",
        "/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_wrong_addresses_and_arguments(frozen_page: ckpt.monitoring.WebPage, path: str) -> None:
    with open_client(frozen_page) as client:
        answer = client.get(path)
        assert answer.status_code in {400, 404}, answer.text
        assert "Traceback" not in answer.text
        assert client.get("/c/0").status_code == 200


def test_a_huge_query_string_is_refused(frozen_page: ckpt.monitoring.WebPage) -> None:
    with open_client(frozen_page) as client:
        assert client.get("/c/0/key", params={"k0": "x" * 20_000}).status_code == 414
        host, port = frozen_page.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port))) as raw, contextlib.suppress(ConnectionError):
            raw.sendall(b"GET /?k0=" + b"x" * 2_000_000)
            assert b" 400 " in raw.recv(4096)
        assert client.get("/c/0").status_code == 200
