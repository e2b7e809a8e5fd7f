"""How a Python worker finds its task's transaction among those of all executors of a machine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from pyspark_ckpt.operators.worker_session import find_ticket
from pyspark_ckpt.state_store.errors import NotFoundError
from tests.lab import Lab, Server


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
