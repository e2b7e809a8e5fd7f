"""HDFS as a place: the contract of all places, and what HDFS alone can do to a write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import Client

from pyspark_ckpt.state_store.blobs import BlobPlace, RetryPolicy, place_at, with_retries
from pyspark_ckpt.state_store.blobs.hdfs import requests, uploads
from pyspark_ckpt.state_store.errors import InvalidInputError, StorageError
from tests.contracts.test_blob_places import BIG, HALF, BlobPlaceContract
from tests.faults import outages
from tests.services.hdfs_service import HdfsService


class TestHdfsPlace(BlobPlaceContract):
    @pytest.fixture
    def folder(self, hdfs: HdfsService) -> str:
        """What stands in a Hadoop path is the name itself."""
        return f"{hdfs.new_folder()}/not yet/100%25/é"

    @pytest.fixture
    def place(self, folder: str) -> BlobPlace:
        place = place_at(folder)
        assert place.url == folder
        return place

    def test_a_file_is_closed_and_whole_when_its_write_returns(
        self, place: BlobPlace, folder: str, hdfs: HdfsService
    ) -> None:
        """Also where the client goes on asking for it: nothing is left to the recovery of leases."""
        for size in (0, 1, 300_000):
            place.put(f"a{size}", BIG[:size])
            with place.create(f"b{size}") as sink:
                sink.write(memoryview(BIG)[:size])
            for name in (f"a{size}", f"b{size}"):
                hdfs.client.append(f"{hdfs.path(folder)}/{name}").close()  # refused while another has it open
                assert place.get(name) == BIG[:size]

    def test_the_client_is_content_when_its_file_was_closed_for_it(
        self, place: BlobPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever it still asks for comes after the rename, or after the end of the object."""
        closings: list[Future[Any]] = []
        with ThreadPoolExecutor(4) as closers:
            submit = closers.submit

            def remember(call: Callable[[], object]) -> Future[Any]:
                closings.append(submit(call))
                return closings[-1]

            monkeypatch.setattr(closers, "submit", remember)
            monkeypatch.setattr(uploads, "_closers", lambda: closers)
            monkeypatch.setattr(uploads, "FIRST_LOOK_S", 0.001)
            for number in range(4):
                place.put(f"a{number}", b"x")
        assert [closing.exception() for closing in closings] == [None] * 4
        assert [place.get(blob.name) for blob in place.list()] == [b"x"] * 4

    def test_a_file_is_whole_when_the_name_node_restarts_after_its_write(
        self, place: BlobPlace, folder: str, hdfs: HdfsService
    ) -> None:
        with place.create("a") as sink:
            sink.write(BIG)
        hdfs.restart_name_node()
        assert place.get("a") == BIG
        place.put("a", b"again")
        assert [blob.size_bytes for blob in place_at(folder).list()] == [5]

    def test_discard_unfinished_removes_what_dead_writers_left(
        self, place: BlobPlace, folder: str, hdfs: HdfsService
    ) -> None:
        place.put("sst/kept", b"x")
        closed, still_open = (f"{hdfs.path(folder)}/{name}" for name in (HALF, f"state/0/1/{HALF}"))
        hdfs.client.create(closed).close()
        dead = hdfs.client.create(still_open)
        dead.write(b"half")
        assert [blob.name for blob in place.list()] == []
        assert place.discard_unfinished(3600) == 0
        assert place.find_unfinished(3600) == []
        assert [blob.name for blob in place.find_unfinished(-60)] == [HALF, f"state/0/1/{HALF}"]
        assert place.discard_unfinished(-60) == 2
        assert [blob.name for blob in place.list("sst")] == ["sst/kept"]

    def test_remove_empty_folders_removes_what_is_empty_below_it_alone(
        self, place: BlobPlace, folder: str, hdfs: HdfsService
    ) -> None:
        for name in ("x/y/gone", "z/.hidden/kept"):
            place.put(name, b"x")
        place.delete("x/y/gone")
        place.remove_empty_folders()
        assert [entry.path for entry in hdfs.client.list_status(hdfs.path(folder))] == [f"{hdfs.path(folder)}/z"]

    def test_discard_unfinished_spares_a_long_write(
        self, place: BlobPlace, folder: str, hdfs: HdfsService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """HDFS gives a file that is written no new time; the writer does."""
        monkeypatch.setattr(uploads, "TOUCH_S", 0)
        with place.create("a") as sink:
            sink.write(b"an hour ago")
            (temporary,) = hdfs.files(folder)
            hour_ago_ms = int((time.time() - 3600) * 1000)
            hdfs.client.set_times(temporary, hour_ago_ms, hour_ago_ms)
            sink.write(b", and now")
            assert place.discard_unfinished(60) == 0
        assert place.get("a") == b"an hour ago, and now"

    def test_list_is_complete_when_there_are_more_than_one_answer_holds(self, place: BlobPlace) -> None:
        names = [f"{number:04d}" for number in range(1100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: place.put(name, b""), names))
        assert [blob.name for blob in place.list()] == names
        assert [blob.name for blob in place.list(start="1050")] == names[1050:]

    def test_a_write_is_its_own_when_its_answer_was_lost(
        self, place: BlobPlace, folder: str, hdfs: HdfsService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name node has renamed and the client is told nothing: what is there is its own."""
        lose_answers(monkeypatch, times=3)
        assert place.put_if_absent("a", b"once")
        place.put("b", b"once")
        with place.create("c") as sink:
            sink.write(BIG)
        assert not place.put_if_absent("a", b"twice")
        assert (place.get("a"), place.get("b"), place.get("c")) == (b"once", b"once", BIG)
        assert len(hdfs.files(folder)) == 3

    def test_a_write_cannot_land_later_when_it_was_not_heard(
        self, place: BlobPlace, folder: str, hdfs: HdfsService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hasty = with_retries(place, RetryPolicy(0))
        lose_answers(monkeypatch, times=1, before_it_happens=True)
        with pytest.raises(StorageError, match=r"write hdfs://.*/a: connection reset") as caught:
            hasty.put_if_absent("a", b"x")
        assert caught.value.outcome == "not_applied"
        assert hdfs.files(folder) == [], "what could still be renamed is gone"
        lose_answers(monkeypatch, times=3, before_it_happens=True)
        assert place.put_if_absent("a", b"other"), "it is asked for again"
        lose_answers(monkeypatch, times=1, before_it_happens=True)
        with pytest.raises(StorageError), hasty.create("a") as sink:
            sink.write(b"x")
        assert not place.put_if_absent("a", b"x")
        assert place.get("a") == b"other"

    def test_a_write_is_unknown_when_there_are_no_answers_at_all(
        self, place: BlobPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lose_answers(monkeypatch, times=1)
        place = with_retries(place, RetryPolicy(0))

        def delete(_client: Client, _path: str) -> bool:
            raise OSError("connection reset")

        with monkeypatch.context() as patch:
            patch.setattr(Client, "delete", delete)
            with pytest.raises(StorageError) as caught:
                place.put_if_absent("a", b"x")
        assert caught.value.outcome == "unknown"
        assert place.get("a") == b"x", "it had landed"

    def test_another_ones_object_is_not_taken_for_its_own(
        self, place: BlobPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The answer is lost, the temporary file is gone, and what has the name is not what was written."""
        original = Client.rename

        def rename(client: Client, source: str, target: str, *, overwrite: bool) -> None:
            original(client, source, target, overwrite=overwrite)
            monkeypatch.setattr(Client, "rename", original)
            place.put("a", b"y")
            raise OSError("connection reset")

        monkeypatch.setattr(Client, "rename", rename)
        with pytest.raises(StorageError) as caught:
            place.put_if_absent("a", b"x")
        assert caught.value.outcome == "unknown"
        assert place.get("a") == b"y"

    def test_safe_mode_is_named(self, place: BlobPlace, hdfs: HdfsService) -> None:
        place.put("a", b"x")
        with hdfs.in_safe_mode():
            with pytest.raises(StorageError, match=r"write hdfs://.*/b: .*safe mode.*\(SafeModeException\)") as caught:
                with_retries(place, RetryPolicy(0.5)).put("b", b"x")
            assert place.get("a") == b"x"
        assert "leaves safe mode" in caught.value.hint
        assert caught.value.outcome == "not_applied"

    def test_a_missing_permission_is_named(
        self, place: BlobPlace, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.put("a", b"x")
        with new_clients(monkeypatch, HADOOP_USER_NAME="stranger"):
            theirs = place_at(folder)
            assert theirs.get("a") == b"x"
            with pytest.raises(StorageError, match="Permission denied: user=stranger") as caught:
                theirs.put_if_absent("b", b"x")
        assert "\n" not in caught.value.message, "no stack trace"
        assert caught.value.hint.startswith("Give WRITE permission on /")
        assert " to the HDFS user stranger. This user is HADOOP_USER_NAME" in caught.value.hint
        assert caught.value.is_denied
        assert not caught.value.retryable

    @pytest.mark.parametrize("user", ["user", "other"])
    def test_the_user_is_that_of_spark_if_no_other_one_is_named(
        self, user: str, place: BlobPlace, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.put("a", b"x")
        monkeypatch.setenv("HADOOP_USER_NAME", user)  # and put back after the test
        if user == "user":
            monkeypatch.delenv("HADOOP_USER_NAME")
        with (
            new_clients(monkeypatch, SPARK_USER="user"),
            pytest.raises(StorageError, match=f"Permission denied: user={user}"),
        ):
            place_at(folder).put_if_absent("b", b"x")

    def test_a_file_in_the_way_is_named(self, place: BlobPlace, folder: str) -> None:
        place.put("file", b"x")
        with pytest.raises(StorageError, match="file") as caught:
            place_at(f"{folder}/file/below").put("a", b"x")
        assert "in the way" in caught.value.hint


SITE = "<configuration>{}</configuration>"
PROPERTY = "<property><name>{}</name><value>{}</value></property>"


@pytest.mark.parametrize("uri", ["hdfs://service{}", "hdfs://{}", "hdfs:{}", "viewfs://table{}"])
def test_a_uri_without_a_port_is_looked_up_in_the_hadoop_conf_dir(
    uri: str, hdfs: HdfsService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first name node of the service is not there, and the second answers."""
    configure(
        tmp_path,
        {
            "fs.defaultFS": "hdfs://service",
            "dfs.ha.namenodes.service": "first,second",
            "dfs.namenode.rpc-address.service.first": "127.0.0.1:1",
            "dfs.namenode.rpc-address.service.second": hdfs.address.partition("://")[2],
            "fs.viewfs.mounttable.table.linkFallback": "hdfs://service/",
        },
    )
    folder = hdfs.new_folder()
    with new_clients(monkeypatch, HADOOP_CONF_DIR=str(tmp_path)):
        place = place_at(uri.format(hdfs.path(folder)))
        place.put("a", b"x")
        assert place_at(place.url).get("a") == b"x", "its URL leads to it"
    assert place_at(folder).get("a") == b"x"


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("hdfs://127.0.0.1:1/x", "port"),
        ("hdfs://no-such-host.invalid:8020/x", "Correct the host"),
    ],
)
def test_a_name_node_that_does_not_answer_is_named(uri: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_clients(monkeypatch), pytest.raises(StorageError, match=uri) as caught:
        place_at(uri, retries=RetryPolicy(0.5)).list()
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("hdfs:///x", "fs.defaultFS"),
        ("hdfs://no-such-service/x", "HADOOP_CONF_DIR"),
        ("viewfs://no-such-table/x", "linkFallback"),
        ("hdfs://host:port/x", "hdfs://host:port/path"),
        ("hdfs://[::1/x", "hdfs://host:port/path"),
    ],
)
def test_a_uri_that_leads_nowhere_is_refused(
    uri: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_clients(monkeypatch, HADOOP_CONF_DIR=str(tmp_path)), pytest.raises(InvalidInputError) as caught:
        place_at(uri)
    assert repr(uri) in caught.value.message
    assert hint in caught.value.hint


def configure(folder: Path, settings: Mapping[str, str]) -> None:
    """Write what Hadoop's clients read."""
    properties = "".join(PROPERTY.format(key, value) for key, value in settings.items())
    (folder / "core-site.xml").write_text(SITE.format(properties))


@contextmanager
def new_clients(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Iterator[None]:
    """The place makes its clients anew, in another environment, and forgets them."""
    with monkeypatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        requests._client.cache_clear()
        try:
            yield
        finally:
            requests._client.cache_clear()


def lose_answers(monkeypatch: pytest.MonkeyPatch, *, times: int, before_it_happens: bool = False) -> None:
    """Let the client hear nothing of its next renames."""
    outages.lose_answers(
        monkeypatch,
        Client,
        "rename",
        lambda _: OSError("connection reset"),
        times=times,
        before_it_happens=before_it_happens,
    )
