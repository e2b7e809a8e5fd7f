"""Stores that are frozen: of the engine alone, in both checkpoint formats, with all that a query's life leaves."""

from __future__ import annotations

import base64
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.database import Reader, Tuning, write_table_file
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, encode_hashed_key, encode_ordered_key, state_range
from pyspark_ckpt.state_store.options import parse
from tests.labs.lab import DESCRIPTOR, Lab

TUNING = Tuning(1 << 20)
STATES: dict[str, dict[str, Any]] = {
    "default": DESCRIPTOR,
    "by time": {**DESCRIPTOR, "ordered": True, "key_schema": {"type": "long"}},
}
Rows = dict[str, dict[str, str]]
"""Keys and values of every state."""


def write_format_2(folder: Path) -> tuple[Path, dict[str, Rows]]:
    """Seven versions with a sibling each that lost, a snapshot of all files, one that shares some, and retention."""
    lab = Lab(folder, retentionGracePeriod="0")
    lab.partition = 0
    handle, ids, rows, kept = lab.open(keep=4), list[str](), Rows(), dict[str, Rows]()
    for version in range(7):
        base = ids[-1] if ids else None
        rows = _next(rows, version)
        _commit(lab, _begin(lab, handle, version, base), _next(rows, version + 100))
        ids.append(_commit(lab, _begin(lab, handle, version, base), rows))
        kept[str(version + 1)] = rows
        lab.log_commit(version, [ids[-1]])
        if version in (1, 4):
            _begin(lab, handle, version + 1, ids[-1])
            assert lab.server.call("snapshot", handle=handle, force=True)["version"] == version + 1
    _begin(lab, handle, 7, ids[-1])
    assert lab.server.call("cleanup", handle=handle)["deleted"] > 0
    _finish(lab)
    return lab.checkpoint, {version: each for version, each in kept.items() if int(version) > 1}


def write_format_1(folder: Path) -> tuple[Path, dict[str, Rows]]:
    """Three runs: of the first one batch was not committed, and the second does it again with another outcome."""
    lab = Lab(folder)
    lab.partition = 0
    rows, kept = Rows(), dict[str, Rows]()
    for run, versions in (("first", range(3)), ("second", range(2, 5)), ("third", range(5, 6))):
        handle = lab.open(run=run, fmt=1)
        for version in versions:
            rows = _next(kept.get(str(version), Rows()), version + 10 * len(run))
            one, two = _begin(lab, handle, version), _begin(lab, handle, version)
            won = _commit(lab, one, rows)
            assert _commit(lab, two, _next(rows, version)) == won, "the first of a run stands"
            kept[str(version + 1)] = rows
            if (run, version) != ("first", 2):
                lab.log_commit(version, None)
    _begin(lab, handle, 6)
    lab.server.call("snapshot", handle=handle, force=True)
    _finish(lab)
    return lab.checkpoint, kept


def rows_of(lab: Lab, version: int, **more: Any) -> Rows:  # noqa: ANN401
    """What the engine shows of a version of a store."""
    return _rows(_begin(lab, lab.open(**more), version))


def commit_next(lab: Lab, version: int, rows: Rows) -> tuple[Rows, str]:
    """Make one more version on top of ``version``; its rows, and its id."""
    rows = _next(rows, version)
    return rows, _commit(lab, _begin(lab, lab.open(run="present"), version), rows)


def _begin(lab: Lab, handle: int, version: int, commit_id: str | None = None) -> dict[str, Any]:
    return lab.server.call("begin", handle=handle, version=version, id=commit_id)


def _next(rows: Rows, version: int) -> Rows:
    """The rows after one more batch: some are new, one changes, one goes."""
    hashed, ordered = dict(rows.get("default", {})), dict(rows.get("by time", {}))
    hashed |= {f"key {version} {n}": f"{'v' * n}{version}" for n in range(4)} | {"always": str(version)}
    hashed.pop(f"key {version - 2} 1", None)
    ordered |= {f"{1000 - version:06d}": "", f"{version:06d} ä": "\0"}
    ordered.pop(f"{1000 - version + 1:06d}", None)
    return {"default": hashed, "by time": ordered}


def _commit(lab: Lab, begun: dict[str, Any], rows: Rows) -> str:
    """Make ``rows`` what is there, as the JVM does; the id of the version that stands."""
    before = _rows(begun)
    staged: dict[bytes, bytes | None] = {MARKER_KEY: base64.b64decode(begun["next_marker_value"])}
    changes = {}
    for name, descriptor in STATES.items():
        number = lab.server.call("create_state", txn=begun["txn"], name=name, descriptor=descriptor)["number"]
        old, new = before.get(name, {}), rows[name]
        for key in {**old, **new}:
            value = new.get(key)
            if old.get(key) != value:
                stored = None if value is None else value.encode()
                staged[_key(number, key, ordered=bool(descriptor["ordered"]))] = stored
        changes[str(number)] = len(new) - len(old)
    write_table_file(Path(begun["staging"]) / "0.sst", sorted(staged.items()), TUNING)
    answer = lab.server.call("commit", txn=begun["txn"], files=["0.sst"], rows=changes, num_partitions=1)
    return str(answer["id"])


def _key(number: int, key: str, *, ordered: bool) -> bytes:
    partition_hash = sum(key.encode()) * 2654435761 % (1 << 32)
    if ordered:
        return encode_ordered_key(number, key.encode(), partition_hash)
    return encode_hashed_key(number, partition_hash, key.encode())


def _rows(answer: dict[str, Any]) -> Rows:
    """Read what a call of ``begin`` has answered, as the JVM does: a live database changes its files meanwhile."""
    found: Rows = {}
    with TemporaryDirectory() as folder:
        reader = Reader(Path(answer["db"]), TUNING, Path(folder) / "secondary" if answer["live"] else None)
        try:
            for state in answer["states"]:
                portions = reader.portions(*state_range(state["number"]))
                inside = {key: value.decode() for key, value in chain.from_iterable(portions)}
                cut = slice(2, -4) if state["descriptor"]["ordered"] else slice(6, None)
                found[state["name"]] = {key[cut].decode(): value for key, value in inside.items()}
                assert state["rows"] == len(inside), "row counts are exact"
        finally:
            reader.close()
    return found


def _finish(lab: Lab) -> None:
    """Add what Spark writes, and stop."""
    lab.name_operator()
    lab.name_query()
    lab.server.stores.shut_down()
    assert Checkpoint(str(lab.checkpoint), parse({})).operators()
