"""How a Python worker finds its task's transaction among those of all executors of a machine, and what it leaves."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import pytest

from pyspark_ckpt.operators.session.told_operators import (
    NO_WATERMARK,
    OPERATORS_CONF,
    Clocks,
    ToldOperator,
    find_own,
    read_told,
)
from pyspark_ckpt.operators.session.views import _open_reader, _views, find_view
from pyspark_ckpt.operators.session.worker import find_ticket
from pyspark_ckpt.state_store.database import Reader
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.transactions.ticket import WorkerTask, read_ticket, ticket_path
from tests.labs.lab import Lab, Server
from tests.labs.session_lab import STATES, SessionLab

ENDED = 3
STORE = Identity(0, 3, "default")


def test_a_worker_finds_the_ticket_of_its_own_executor_when_others_share_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executors = {f"blockmgr-{letter * 8}": tmp_path / f"ckpt-0-{letter}" / "server" for letter in "ab"}
    staging = {}
    with ExitStack() as running:
        for blocks, local_dir in executors.items():
            lab = Lab(tmp_path / blocks)
            lab.server.stores.shut_down()
            lab.server = Server(local_dir, {})
            running.callback(lab.server.stores.shut_down)
            begun = lab.server.call("begin", handle=lab.open(), version=0, attempt=7, executor=blocks)
            staging[blocks] = begun["staging"]
        for blocks, found in staging.items():
            monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/disk1/{blocks},/disk2/blockmgr-of-the-second-disk")
            assert find_ticket(7, str(tmp_path)).staging == found
        monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk1/blockmgr-cccccccc")
        with pytest.raises(NotFoundError, match="has 0 tickets"):
            find_ticket(7, str(tmp_path))


def test_a_worker_is_told_when_its_task_has_two_partitions_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    lab = Lab(tmp_path)
    lab.server.stores.shut_down()
    lab.server = Server(tmp_path / "ckpt-0" / "server", {})
    handles = [lab.open(partition=number, state_dir=str(lab.remote.with_name(str(number)))) for number in (0, 1)]
    transactions = [lab.begin(handle, 0, attempt=7) for handle in handles]
    with pytest.raises(InvalidInputError, match=r"attempt 7 has 2 tickets.*it is not certain for which partition"):
        find_ticket(7, str(tmp_path))
    transactions[0].abort()
    assert find_ticket(7, str(tmp_path)).partition == 1
    lab.server.stores.shut_down()


def test_a_worker_finds_the_ticket_of_its_operator_when_its_task_has_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    lab = Lab(tmp_path)
    lab.server.stores.shut_down()
    lab.server = Server(tmp_path / "ckpt-0" / "server", {})
    for operator in (1, 11):
        handle = lab.open(operator=operator, state_dir=str(lab.remote.with_name(f"of {operator}")))
        lab.begin(handle, 0, attempt=7)
    names = ("keyed(uid='two words')", "with_states(uid='it')")
    told = read_told({OPERATORS_CONF: f"1 - 30 - live {names[0]}\n11 40 30 25 - {names[1]}"}.get)
    found = [find_own(told, name) for name in names]
    assert found == [
        ToldOperator(1, Clocks(NO_WATERMARK, 30, NO_WATERMARK), is_live=True, name=names[0]),
        ToldOperator(11, Clocks(40, 30, 25), is_live=False, name=names[1]),
    ]
    assert [find_ticket(7, str(tmp_path), own.number if own else None).operator for own in found] == [1, 11]
    assert find_own(told, "<lambda>") is None
    with pytest.raises(InvalidInputError, match="has 2 tickets"):
        find_ticket(7, str(tmp_path))
    lab.server.stores.shut_down()


def test_nothing_is_told_where_the_session_lacks_the_rules_of_the_jar() -> None:
    assert read_told(lambda _name: None) == ()


def read_and_end(ticket: Path) -> None:
    """Open a reader as a worker does, and end as Spark ends it."""
    find_view(read_ticket(ticket))
    os._exit(ENDED)


def test_what_workers_that_were_ended_have_left_goes_when_another_reads_or_a_server_begins(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    lab.begin(handle, 1, base, attempt=7)
    ticket = ticket_path(lab.local_dir, WorkerTask(7), STORE)
    readers = lab.local_dir / "readers"
    ended = get_context("spawn").Process(target=read_and_end, args=(ticket,))
    ended.start()
    ended.join()
    assert ended.exitcode == ENDED
    (left,) = readers.iterdir()
    while _views:  # those of other tests, beside which no further one would be kept
        _views.popitem()[1].reader.close()
    view = find_view(read_ticket(ticket))
    assert view is not None
    try:
        (own,) = readers.iterdir()
        assert own != left
        _open_reader(read_ticket(ticket)).close()
        assert list(readers.iterdir()) == [own], "those of a process that runs stay"
        lab.server.die()
        lab.server = Server(lab.local_dir, {})
        assert not readers.exists()
        view.reader.catch_up()
        assert view.reader.marker() == Marker(1, base)
    finally:
        _views.popitem()[1].reader.close()
        lab.server.stores.shut_down()


def test_a_view_that_shows_an_older_state_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB shows the newest state whose files are all there, which a compaction may have deleted."""
    lab = Lab(tmp_path)
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    lab.begin(handle, 1, base, attempt=7)
    ticket = read_ticket(ticket_path(lab.local_dir, WorkerTask(7), STORE))
    assert ticket.live
    shown = iter([None, None])
    marker = Reader.marker
    monkeypatch.setattr(Reader, "marker", lambda reader: next(shown, marker(reader)))
    try:
        view = find_view(ticket)
        assert view is not None
        assert marker(view.reader) == Marker(1, base)
        monkeypatch.setattr(Reader, "marker", lambda _reader: None)
        with pytest.raises(FormatError, match=r"is damaged: it shows None, not .*; there are 1 table files"):
            find_view(ticket)
    finally:
        while _views:
            _views.popitem()[1].reader.close()
        lab.server.stores.shut_down()


def test_a_worker_finds_its_ticket_after_the_local_folder_was_removed_under_a_server_of_any_umask(
    tmp_path: Path,
) -> None:
    """What is made anew is this user's alone as well, or no worker would believe it."""
    lab = SessionLab(tmp_path, STATES)
    before = os.umask(0o002)
    try:
        shutil.rmtree(lab.lab.local_dir)
        batch, states = lab.begin()
        batch.at("user 1")
        states["value"].update(7)
        batch.stage()
        lab.commit(batch)
    finally:
        os.umask(before)
        lab.close()
