"""What the JVM, the state server and the Python workers hand each other in local files, damaged."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.state_store.database import Tuning, write_table_file
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import Marker, encode_hashed_key
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import seal_json
from pyspark_ckpt.state_store.transactions.parts import Part, PartState, close_log, join, read_parts, write_part
from pyspark_ckpt.state_store.transactions.staged_log import Frame, StagedLog, read_frames
from pyspark_ckpt.state_store.transactions.ticket import Ticket, WorkerTask, read_ticket, ticket_path, write_ticket
from tests.fuzz.mutations import REFUSED, any_damage, damaged, fuzzed, little_memory, read_or_refuse

TUNING = Tuning(1 << 20)
STATES = (PartState("it/seen", 0x4000, Descriptor(value_schema={"value": {"schemas": ["long"], "current": 1}})),)
COMMIT = "1" * 32
PART = Part(STATES, ("worker-0.sst",), {0x4000: 7}, 7, {"late_rows": 2}, COMMIT)
LOGGED = Part(STATES, (), {}, 0, {}, COMMIT, "groups-0000-a.log")
FRAMES = [
    Frame([(encode_hashed_key(0x4000, 5, b"key"), b"\x01value")], (), {0x4000: 1}, {}, 1),
    Frame([(encode_hashed_key(0x4000, 9, b"key"), None)], (), {0x4000: 0}, {"expired_rows": 3}, 2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def log(folder: Path) -> bytes:
    path = folder / "valid.log"
    staged = StagedLog(path)
    for frame in FRAMES:
        staged.append(frame)
    staged.close()
    assert read_frames(path) == FRAMES
    return path.read_bytes()


@fuzzed
@given(data=st.data())
def test_a_log_is_read_or_refused(data: st.DataObject, log: bytes, folder: Path) -> None:
    content = data.draw(damaged(log))
    path = folder / "damaged.log"
    path.write_bytes(content)
    read_or_refuse(lambda: read_frames(path), content, str(path))


@pytest.mark.parametrize("part", [PART, LOGGED], ids=["files", "log"])
@fuzzed
@given(data=st.data())
def test_a_part_is_joined_or_refused_and_nothing_lies_outside(
    part: Part, data: st.DataObject, log: bytes, folder: Path
) -> None:
    content = data.draw(any_damage(msgspec.json.encode(part)))
    staging = folder / "staging"
    staging.mkdir(exist_ok=True)
    (staging / LOGGED.log).write_bytes(log)
    (staging / "worker.part.json").write_bytes(content)
    before = sorted(folder.iterdir())
    with little_memory(len(content), 1 << 20):
        try:
            parts = [close_log(staging, each, Marker(1, COMMIT), TUNING) for each in read_parts(staging, COMMIT)]
            joined = join(EMPTY_META, parts)
            joined.meta.commit("a" * 32, joined.row_changes, 1)
        except REFUSED:
            pass
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("log", ["../../elsewhere.log", "/tmp/elsewhere.log", "..", "a/b.log", "x.sst"])
def test_a_log_that_lies_elsewhere_is_refused(log: str, tmp_path: Path) -> None:
    write_part(tmp_path, "worker", msgspec.structs.replace(LOGGED, log=log))
    with pytest.raises(FormatError, match="not the name of a log"):
        read_parts(tmp_path, COMMIT)


def test_a_log_that_is_missing_is_named(tmp_path: Path) -> None:
    write_part(tmp_path, "worker", LOGGED)
    with pytest.raises(FormatError, match=LOGGED.log):
        close_log(tmp_path, read_parts(tmp_path, COMMIT)[0], Marker(1, COMMIT), TUNING)


@pytest.mark.parametrize("schema", [None, "long", {"value": None}, {"value": {"schemas": 3}}])
def test_a_part_with_types_that_are_none_is_refused(schema: object) -> None:
    declared = PartState("it/seen", 0x4000, Descriptor(value_schema=schema))
    stored, _ = EMPTY_META.with_state("it/seen", STATES[0].descriptor, keyed=True)
    with pytest.raises(InvalidInputError, match="it/seen"):
        join(stored, [msgspec.structs.replace(PART, states=(declared,))])


def made_ticket(local_dir: Path) -> tuple[Path, Ticket]:
    path = ticket_path(local_dir, WorkerTask(5), Identity(0, 0, "default"))
    path.parent.mkdir(parents=True, exist_ok=True)
    db, staging = local_dir / "stores" / "0-0" / "ab" / "db", local_dir / "staging" / "5-ab"
    ticket = Ticket(
        0, 0, "default", 0, "0", "ab" * 16, str(db), True, str(staging), "lz4", EMPTY_META, num_partitions=2
    )
    write_ticket(path, ticket)
    return path, ticket


@fuzzed
@given(data=st.data())
def test_a_ticket_is_read_or_refused_and_leads_into_its_own_folder(data: st.DataObject, folder: Path) -> None:
    path, ticket = made_ticket(folder / "server")
    assert read_ticket(path) == ticket
    content = data.draw(any_damage(msgspec.json.encode(ticket)))
    path.write_bytes(data.draw(st.sampled_from([content, seal_json(content)])))
    found = read_or_refuse(lambda: read_ticket(path), content, str(path))
    if found is not None:
        for place in (found.db, found.staging):
            assert Path(place).resolve().is_relative_to((folder / "server").resolve())


@pytest.mark.parametrize("field", ["db", "staging"])
@pytest.mark.parametrize("leads", ["/etc", "{}/../../elsewhere", "{}", "relative"])
def test_a_ticket_that_leads_elsewhere_is_refused(field: str, leads: str, tmp_path: Path) -> None:
    path, ticket = made_ticket(tmp_path)
    below = tmp_path / ("stores" if field == "db" else "staging")
    path.write_bytes(json.dumps({**msgspec.to_builtins(ticket), field: leads.format(below)}).encode())
    with pytest.raises(FormatError, match=field if field == "staging" else "stores"):
        read_ticket(path)


def test_what_is_staged_is_still_read(folder: Path) -> None:
    """The valid forms of what is damaged above."""
    staging = folder / "valid"
    staging.mkdir()
    log = StagedLog(staging / LOGGED.log)
    for frame in FRAMES:
        log.append(frame)
    log.close()
    write_table_file(staging / "worker-0.sst", [(b"k", b"v")], TUNING)
    write_part(staging, "a", PART)
    write_part(staging, "b", LOGGED)
    joined = join(
        EMPTY_META, [close_log(staging, each, Marker(1, COMMIT), TUNING) for each in read_parts(staging, COMMIT)]
    )
    assert list(joined.files) == ["worker-0.sst", f"{LOGGED.log}.sst"]
    assert joined.row_changes == {0x4000: 7}
