"""What a state server is given from outside: where its ids come from, and how long it has been running."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.format.names import parse
from pyspark_ckpt.state_store.server.stores import ADOPTION_S
from tests.conftest import MakeLab
from tests.labs.lab import Lab, Server, expected


def test_all_names_in_storage_and_on_disk_come_from_the_ids_that_are_given(lab: Lab) -> None:
    draw, made = random.Random(7), list[str]()

    def make_id() -> str:
        made.append(f"{draw.getrandbits(128):032x}")
        return made[-1]

    former, lab.server = lab.server, Server(lab.local_dir.with_name("other"), lab.options, make_id=make_id)
    ids = lab.grow_with_snapshots(4)
    former.stores.shut_down()
    assert set(ids) <= set(made)
    stored = [parse(name) for name in lab.objects() if not name.startswith("sst/")]
    assert len([each for each in stored if each is not None]) == len(ids) + 2, "four deltas and two snapshots"
    tails = {name.removesuffix(".sst").rpartition("-")[2] for name in lab.objects(".sst")}
    assert tails, "a snapshot has table files"
    assert tails <= {each[:8] for each in made}
    copies = [path.parent.name for path in (lab.local_dir.with_name("other") / "stores").glob("*/*/db")]
    assert copies
    assert set(copies) <= {each[:16] for each in made}


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_copies_of_an_earlier_server_are_deleted_after_an_hour_in_which_nobody_asks_for_them(
    is_asked_for: bool,  # noqa: FBT001
    lab: Lab,
) -> None:
    ids, now_s = lab.grow(lab.open(), 3), [0.0]
    lab.server.settled()
    lab.server.die()
    (left,) = (lab.local_dir / "stores").iterdir()
    lab.server = Server(lab.local_dir, lab.options, uptime=lambda: now_s[0])
    if is_asked_for:
        assert lab.begin(lab.open(), 3, ids[-1]).answer["metrics"]["restored"] == 0
    other: dict[str, Any] = {"partition": 7, "state_dir": f"{lab.checkpoint}/state/0/7"}
    for now_s[0], is_left in ((0.0, True), (ADOPTION_S, True), (ADOPTION_S + 1, is_asked_for)):
        lab.server.call("close", handle=lab.open(**other))
        lab.server.settled()
        assert left.exists() == is_left
    assert lab.begin(lab.open(), 3, ids[-1]).rows == expected(3)


def test_each_store_has_the_compression_of_its_own_query(make_lab: MakeLab) -> None:
    lab = make_lab(compression="zstd")
    for partition, (given, name) in enumerate({"lz4": b"LZ4", "zstd": b"ZSTD", "none": b"NoCompression"}.items()):
        store: dict[str, Any] = {"partition": partition, "state_dir": f"{lab.checkpoint}/state/0/{partition}"}
        handle = lab.open(**store, options={"compression": given})
        written = lab.begin(handle, 0).commit()["id"]  # nothing but the marker, in a table file of the server
        (table,) = Path(lab.begin(handle, 1, written).answer["db"]).glob("*.sst")
        assert name in table.read_bytes()
