"""What was staged is read before it is acknowledged: damage of any kind fails the commit, and nothing is visible."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.state_store.database import Tuning, write_table_file
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker, encode_hashed_key
from pyspark_ckpt.state_store.sst.table_check import CheckedTable
from pyspark_ckpt.state_store.transactions.parts import read_parts
from pyspark_ckpt.state_store.transactions.staged_log import Frame, StagedLog, read_frames
from pyspark_ckpt.state_store.transactions.staged_tables import seal_file
from tests.labs.lab import CallError, Lab, Txn
from tests.labs.session_lab import STATES, SessionLab

Harm = Callable[[bytes], bytes]
ROWS = 400
PAGE = 4096


def _flipped(at: float, bit: int) -> Harm:
    def harm(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[int(at * (len(content) - 1))] ^= 1 << bit
        return bytes(changed)

    return harm


def _without_a_page(content: bytes) -> bytes:
    begin = len(content) // 2 // PAGE * PAGE
    return content[:begin] + bytes(len(content[begin : begin + PAGE])) + content[begin + PAGE :]


HARMS: Mapping[str, Harm] = {
    "of 0 bytes": lambda _: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "a page of zeros": _without_a_page,
    "all zeros": lambda content: bytes(len(content)),
    "a tail": lambda content: content + b"\0",
    "twice": lambda content: content + content,
    "no table": lambda content: b"no table".ljust(len(content), b"."),
    "the first bit": _flipped(0, 0),
    "a bit of the first quarter": _flipped(0.25, 3),
    "a bit in the middle": _flipped(0.5, 7),
    "a bit of the last tenth": _flipped(0.9, 1),
    "a bit of the footer": _flipped(0.999, 2),
    "the last bit": _flipped(1, 7),
}


def _filled(
    lab: Lab, handle: int, version: int, base: str | None, marker: Marker | None = None
) -> tuple[Txn, str, Path]:
    """A transaction, and what it has staged: many rows."""
    txn = lab.begin(handle, version, base)
    draw = Random(version)
    for number in range(ROWS):
        txn.put(f"row-{number}", draw.randbytes(20).hex())
    if marker is not None:
        txn.answer["next_marker_value"] = base64.b64encode(marker.encode()).decode()
    name = txn.stage()
    return txn, name, Path(txn.answer["staging"]) / name


def _call_commit(lab: Lab, txn: Txn, files: list[str], **seals: Any) -> dict[str, Any]:  # noqa: ANN401
    rows = {"1": ROWS}
    return lab.server.call("commit", txn=txn.number, files=files, rows=rows, num_partitions=None, **seals)


def _seals(*paths: Path) -> dict[str, Any]:
    return {"seals": {path.name: msgspec.to_builtins(seal_file(path)) for path in paths}}


def _require_as_it_was(lab: Lab, handle: int, base: str, objects: list[str]) -> None:
    """Nothing of the commit is visible, and another attempt makes the version."""
    assert lab.objects() == objects
    again, name, _ = _filled(lab, handle, 1, base)
    done = _call_commit(lab, again, [name])
    lab.server.settled()
    assert lab.begin(handle, 2, done["id"]).answer["live"]
    lab.restart(lose_local=True)
    assert len(lab.begin(lab.open(), 2, done["id"]).rows) == ROWS + 1


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("harm", HARMS.values(), ids=list(HARMS))
def test_a_damaged_table_file_is_refused_by_its_name_and_the_next_attempt_commits(
    *, harm: Harm, sealed: bool, lab: Lab
) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    objects = lab.objects()
    txn, name, path = _filled(lab, handle, 1, base)
    seals = _seals(path) if sealed else {}
    content = harm(path.read_bytes())
    assert content != path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(CallError, match="is damaged") as caught:
        _call_commit(lab, txn, [name], **seals)
    assert caught.value.kind == "StorageError"
    assert caught.value.retryable
    assert str(path) in caught.value.message
    assert "partition 3" in caught.value.message
    assert "tried again" in caught.value.hint
    _require_as_it_was(lab, handle, base, objects)


@pytest.mark.parametrize("marker", [Marker(1, "a" * 32), Marker(2, "a" * 32), Marker(3, "b" * 32)])
def test_a_table_file_with_the_marker_row_of_another_commit_is_refused(marker: Marker, lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    objects = lab.objects()
    txn, name, path = _filled(lab, handle, 1, base, marker)
    with pytest.raises(CallError, match=rf"{path.name} is damaged: it has the marker row of version {marker.version} "):
        _call_commit(lab, txn, [name], **_seals(path))
    _require_as_it_was(lab, handle, base, objects)


def test_a_table_file_without_a_marker_row_is_refused_where_the_first_one_belongs(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    objects = lab.objects()
    txn, _, path = _filled(lab, handle, 1, base)
    other = path.with_name("1.sst")
    write_table_file(other, [(encode_hashed_key(1, 5, b"k"), b"v")], Tuning(1 << 20))
    with pytest.raises(CallError, match=r"1\.sst is damaged: it does not begin with the marker row of version 2"):
        _call_commit(lab, txn, ["1.sst", "0.sst"], **_seals(other, path))
    _require_as_it_was(lab, handle, base, objects)


def test_a_whole_file_in_the_place_of_another_is_refused_by_its_seal(lab: Lab) -> None:
    """Both have the same keys, sizes and marker row, and right checksums of their own."""
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    objects = lab.objects()
    txn = lab.begin(handle, 1, base)
    for name, value in (("a.sst", "old"), ("b.sst", "new")):
        txn.put("k", value)
        txn.stage(name)
    paths = [Path(txn.answer["staging"]) / name for name in ("a.sst", "b.sst")]
    seals = _seals(*paths)
    first, second = (path.read_bytes() for path in paths)
    paths[0].write_bytes(second)
    paths[1].write_bytes(first)
    with pytest.raises(CallError, match=r"a\.sst is damaged: it has \d+ bytes with the checksum"):
        _call_commit(lab, txn, ["a.sst", "b.sst"], **seals)
    _require_as_it_was(lab, handle, base, objects)


def test_a_file_that_its_writer_has_completed_and_that_is_gone_is_refused(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    objects = lab.objects()
    txn, name, path = _filled(lab, handle, 1, base)
    seals = _seals(path)
    path.unlink()
    with pytest.raises(CallError, match="is missing") as caught:
        _call_commit(lab, txn, [name], **seals)
    assert caught.value.retryable
    _require_as_it_was(lab, handle, base, objects)


def test_a_seal_of_a_file_that_the_commit_does_not_list_is_refused(lab: Lab) -> None:
    txn = lab.begin(lab.open(), 0)
    seals = {"seals": {"0.sst": {"bytes": 1, "xxh64": "0" * 16}}}
    with pytest.raises(CallError, match="does not list"):
        lab.server.call("commit", txn=txn.number, files=[], **seals)


def test_a_file_that_is_damaged_after_its_upload_costs_a_restore_and_no_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is whole, of other rows."""
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    for harm in (HARMS["a bit in the middle"], None):
        txn, name, path = _filled(lab, handle, 1, base)
        other = path.with_name("other")
        txn.put("row-1", "another")
        txn.stage("other.sst")
        wrong = path.with_name("other.sst").read_bytes() if harm is None else harm(path.read_bytes())
        other.write_bytes(wrong)

        def damage_at(point: str, path: Path = path, other: Path = other) -> None:
            if point == "commit.before_ingest":
                other.replace(path)

        monkeypatch.setattr(lab.server.stores._resources.failpoints, "hit", damage_at)
        done = _call_commit(lab, txn, [name], **_seals(path))
        lab.server.settled()
        monkeypatch.undo()
        expected = txn.rows | {key: value for key, value in txn.changes.items() if key != "row-1"}
        found = lab.begin(handle, 2, done["id"])
        assert found.answer["metrics"]["restored"]
        assert {key: value for key, value in found.rows.items() if key != "row-1"} == expected
        assert found.rows["row-1"] != "another"


_COVERED = {(1, "none"), (40, "lz4"), (3000, "zstd")}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("rows", "compression"),
    [
        pytest.param(rows, each, marks=() if (rows, each) in _COVERED else pytest.mark.matrix)
        for rows in (1, 40, 3000)
        for each in ("lz4", "zstd", "none")
    ],
)
def test_every_bit_of_a_table_file_is_covered(compression: str, rows: int, tmp_path: Path) -> None:
    draw = Random(rows)
    keys = sorted(
        {encode_hashed_key(1, draw.getrandbits(32), draw.randbytes(draw.randint(0, 40))) for _ in range(rows)}
    )
    path = tmp_path / "0.sst"
    values = [None if draw.random() < 0.1 else draw.randbytes(draw.randint(0, 9)) + bytes(70) for _ in keys]
    write_table_file(path, [(MARKER_KEY, b"m"), *zip(keys, values, strict=True)], Tuning(1 << 20, compression))
    content = path.read_bytes()
    assert _read(path) == content
    tail = range(len(content) - 400, len(content))
    for at in {*draw.sample(range(len(content)), min(1500, len(content))), *tail}:
        changed = bytearray(content)
        changed[at] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(FormatError, match=path.name):
            _read(path)


def _read(path: Path) -> bytes:
    with closing(CheckedTable(path)) as table:
        content = b"".join(table.chunks())
        assert table.first_row() == (MARKER_KEY, b"m")
        return content


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[SessionLab]:
    made = SessionLab(tmp_path, STATES)
    yield made
    made.close()


def _stage_values(worker: SessionLab, files: int = 1) -> tuple[Any, Path]:
    """A batch whose worker has staged a value for each of some keys, in so many files."""
    batch, states = worker.begin()
    for number in range(files):
        batch.at("user 1")
        states["value"].update(number)
        batch.flush()
    batch.stage()
    return batch, Path(batch.session._ticket.staging)


def _require_refused(worker: SessionLab, batch: Any, what: str) -> None:  # noqa: ANN401
    with pytest.raises(CallError, match=what) as caught:
        worker.commit(batch)
    assert caught.value.kind == "StorageError"
    assert caught.value.retryable
    assert worker.lab.objects() == []
    batch, _ = _stage_values(worker, 3)
    assert worker.commit(batch)["version"] == 1
    batch, states = worker.begin()
    batch.at("user 1")
    assert states["value"].value() == 2
    batch.abort()


@pytest.mark.parametrize("harm", HARMS.values(), ids=list(HARMS))
def test_a_damaged_file_of_a_worker_is_refused(harm: Harm, worker: SessionLab) -> None:
    batch, staging = _stage_values(worker)
    (path,) = staging.glob("worker-*.sst")
    path.write_bytes(harm(path.read_bytes()))
    _require_refused(worker, batch, f"{path.name} is damaged")


@pytest.mark.parametrize("harm", HARMS.values(), ids=list(HARMS))
def test_a_damaged_part_is_refused(harm: Harm, worker: SessionLab) -> None:
    batch, staging = _stage_values(worker)
    (path,) = staging.glob("*.part.json")
    path.write_bytes(harm(path.read_bytes()))
    _require_refused(worker, batch, f"{path.name} is damaged")


def test_every_bit_of_a_part_is_covered(worker: SessionLab) -> None:
    batch, staging = _stage_values(worker)
    (path,) = staging.glob("*.part.json")
    content = path.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with pytest.raises(FormatError, match=path.name):
            read_parts(staging, batch.session._ticket.new_id)


def _to_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [_to_link, _to_pipe, _to_folder])
def test_what_is_no_file_is_refused_in_the_place_of_one_and_not_waited_for(
    change: Callable[[Path], None], worker: SessionLab, tmp_path: Path
) -> None:
    for pattern in ("*.part.json", "worker-*.sst"):
        batch, staging = _stage_values(worker)
        (path,) = staging.glob(pattern)
        change(path)
        with pytest.raises(CallError, match=path.name) as caught:
            worker.commit(batch)
        assert (caught.value.kind, caught.value.retryable) == ("StorageError", True)
    batch, staging = _stage_values(worker, 3)
    (staging / "0123456789abcdef.damage").touch()
    change(staging / "0123456789abcdef.damage")
    worker.commit(batch)
    log = tmp_path / "groups-0000-a.log"
    log.touch()
    change(log)
    with pytest.raises(OSError, match=log.name):
        read_frames(log)
    lab = worker.lab
    handle = lab.open(partition=4)
    txn, name, path = _filled(lab, handle, 0, None)
    seals = _seals(path)
    change(path)
    with pytest.raises(CallError, match=r"0\.sst is missing or is no plain file") as caught:
        _call_commit(lab, txn, [name], **seals)
    assert caught.value.retryable
    for path in (lab.local_dir / "stores").glob("*/*/*.json"):
        change(path)
    lab.restart()
    found = lab.server.call("begin", handle=lab.open(), version=worker.version, id=worker.id)
    assert found["metrics"]["restored"]


def test_what_the_worker_of_another_partition_has_staged_is_refused(worker: SessionLab) -> None:
    """All checksums of it are right."""
    batch, staging = _stage_values(worker)
    handle, worker.handle = worker.handle, worker.lab.open(partition=4)
    _, other = _stage_values(worker, 2)
    worker.handle = handle
    for path in staging.iterdir():
        path.unlink()
    for path in other.iterdir():
        shutil.copy(path, staging)
    _require_refused(worker, batch, "part.json is damaged: it is of the commit")


@pytest.mark.parametrize("pattern", ["*.part.json", "worker-*.sst"])
def test_a_part_or_a_file_of_a_worker_that_is_gone_is_refused(pattern: str, worker: SessionLab) -> None:
    """Else the batch would be acknowledged without the worker's rows."""
    batch, staging = _stage_values(worker)
    (path,) = staging.glob(pattern)
    path.unlink()
    _require_refused(worker, batch, "is missing")


def test_two_files_of_a_worker_that_are_swapped_are_refused(worker: SessionLab) -> None:
    batch, staging = _stage_values(worker, 3)
    _, first, second = sorted(staging.glob("worker-*.sst"))
    contents = first.read_bytes(), second.read_bytes()
    assert len(contents[0]) == len(contents[1])
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    _require_refused(worker, batch, f"{first.name} is damaged")


FRAMES = [
    Frame([(encode_hashed_key(0x4000, n, b"key"), b"\x01value %d" % n)], (), {0x4000: n}, {}, n) for n in range(5)
]


def test_every_bit_and_every_frame_of_a_log_is_covered(tmp_path: Path) -> None:
    path = tmp_path / "groups-0000-a.log"
    log = StagedLog(path)
    ends = []
    for frame in FRAMES:
        log.append(frame)
        ends.append(path.stat().st_size)
    log.close()
    content = path.read_bytes()
    assert read_frames(path) == FRAMES
    harmed = [content[:end] for end in (*ends[:-1], 0, 16)]
    harmed += [content + content[ends[-2] :], content + b"\0"]
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        harmed.append(bytes(changed))
    for each in harmed:
        path.write_bytes(each)
        with pytest.raises(FormatError, match=path.name):
            read_frames(path)
    other = tmp_path / "groups-0001-b.log"
    other.write_bytes(content)
    with pytest.raises(FormatError, match=other.name):
        read_frames(other)
