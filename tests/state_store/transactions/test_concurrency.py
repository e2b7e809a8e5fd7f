"""Many attempts at once: nobody waits for another's transaction, and none disturbs another."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from pyspark_ckpt.state_store.options import PREFIX
from tests.conftest import MakeLab
from tests.labs.beside import beside
from tests.labs.lab import Lab, Rows

ATTEMPTS = 8


def test_attempts_on_one_base_commit_at_the_same_time(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    start = threading.Barrier(ATTEMPTS)
    transactions = [lab.begin(handle, 1, base) for _ in range(ATTEMPTS)]

    def commit(number: int) -> tuple[str, Rows]:
        txn = transactions[number]
        txn.put("k", str(number))
        txn.put(f"only-{number}", "x")
        start.wait()
        return str(txn.commit()["id"]), txn.result()

    with ThreadPoolExecutor(ATTEMPTS) as pool:
        committed = list(pool.map(commit, range(ATTEMPTS)))
    for commit_id, rows in committed:
        assert lab.begin(handle, 2, commit_id).rows == rows


def test_one_restore_serves_all_who_ask(lab: Lab) -> None:
    ids = lab.grow(lab.open(), 5)
    lab.restart(lose_local=True)
    handle = lab.open()
    with ThreadPoolExecutor(ATTEMPTS) as pool:
        begun = list(pool.map(lambda _: lab.begin(handle, 5, ids[-1]), range(ATTEMPTS)))
    assert sum(txn.answer["metrics"]["restored"] for txn in begun) == 1
    assert all(len(txn.rows) == 5 for txn in begun)


def test_a_slow_upload_holds_nobody_up(make_lab: MakeLab) -> None:
    lab = make_lab(**{PREFIX + "failPoints": "commit.before_upload:sleep=3000@2"})
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    slow, quick = lab.begin(handle, 1, base), lab.begin(handle, 1, base)
    started = time.monotonic()
    thread = threading.Thread(target=slow.commit)
    thread.start()
    time.sleep(0.1)
    quick.put("k", "quick")
    done = quick.commit()
    assert lab.begin(handle, 2, done["id"]).rows["k"] == "quick"
    assert thread.is_alive()
    assert time.monotonic() - started < 3
    thread.join()


def test_snapshots_and_clean_up_run_beside_commits(lab: Lab) -> None:
    handle = lab.open(keep=2)
    failures: list[Exception] = []

    def maintain(ended: threading.Event) -> None:
        while not ended.is_set():
            try:
                lab.server.call("snapshot", handle=handle, force=True)
                lab.server.call("cleanup", handle=handle)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it must not happen
                failures.append(problem)

    with beside(maintain):
        ids = lab.grow(handle, 40)
    assert failures == []
    lab.restart(lose_local=True)
    assert len(lab.begin(lab.open(), 40, ids[-1]).rows) == 40
    assert len(lab.begin(lab.open(), 39, ids[-2]).rows) == 39
