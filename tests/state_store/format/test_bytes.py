"""Bytes and names that are stored: the golden examples, which the JVM's tests read as well."""

from __future__ import annotations

import base64
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, RunObject
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format import keys, names
from pyspark_ckpt.state_store.format.delta import read_delta
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.json_objects import seal
from tests.labs.lab import Lab

GOLDEN = Path(__file__).parents[2] / "golden"


def golden(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return content


def only_delta(lab: Lab) -> tuple[Path, names.DeltaName]:
    """Commit one row, and return where it is stored and under what name."""
    txn = lab.begin(lab.open(), 0)
    txn.put("k", "v")
    txn.commit()
    (path,) = lab.remote.iterdir()
    name = names.parse(path.name)
    assert isinstance(name, names.DeltaName)
    return path, name


def test_keys_are_as_written_down() -> None:
    for example in golden("keys.json")["keys"]:
        user_key, number = bytes.fromhex(example["user_key"]), example["hash"]
        if example["ordered"]:
            key = keys.encode_ordered_key(example["state"], user_key, number)
        else:
            key = keys.encode_hashed_key(example["state"], number, user_key)
        assert key.hex() == example["key"], example


def test_the_marker_row_is_as_written_down() -> None:
    assert golden("keys.json")["marker_key"] == keys.MARKER_KEY.hex()
    for example in golden("keys.json")["markers"]:
        marker = Marker(example["version"], example["id"])
        assert marker.encode().hex() == example["value"]
        assert Marker.decode(bytes.fromhex(example["value"])) == marker


def test_state_numbers_are_as_written_down() -> None:
    for example in golden("keys.json")["state_numbers"]:
        assert keys.state_number(example["counter"], ordered=example["ordered"]) == example["number"]


@pytest.mark.parametrize("value", [b"", b"\0" * 8, b"\0" * 8 + b"a-b", b"\0" * 8 + b"\xff"])
def test_a_damaged_marker_is_an_error(value: bytes) -> None:
    with pytest.raises(FormatError):
        Marker.decode(value)


def test_the_marker_is_before_every_row() -> None:
    assert keys.encode_hashed_key(1, 0, b"") > keys.MARKER_KEY


def test_object_names_are_as_written_down() -> None:
    for example in golden("names.json")["deltas"]:
        name = names.DeltaName(
            Marker(example["version"], example["id"]), Marker(example["version"] - 1, example["parent"])
        )
        assert str(name) == example["name"]
        assert names.parse(example["name"]) == name
    for example in golden("names.json")["snapshots"]:
        marker = Marker(example["version"], example["id"])
        assert names.snapshot_name(marker) == example["name"]
        assert names.parse(example["name"]) == marker
    for example in golden("names.json")["winners"]:
        winner = names.WinnerName(example["version"], example["epoch"])
        assert str(winner) == example["name"]
        assert names.parse(example["name"]) == winner
    for name in golden("names.json")["foreign"]:
        assert names.parse(name) is None


def test_a_delta_written_by_the_first_release_is_read(tmp_path: Path) -> None:
    example = golden("delta.json")
    name = names.parse(example["name"])
    assert isinstance(name, names.DeltaName)
    content = base64.b64decode(example["content"])
    place = LocalPlace(tmp_path / "place")
    place.put(str(name), content)
    delta = read_delta(place, name, len(content), tmp_path / "delta")
    assert delta.store.marker == name.commit
    assert [state.name for state in delta.store.states] == ["default"]
    lab = Lab(tmp_path)
    LocalPlace(lab.remote).put(str(name), content)
    assert lab.begin(lab.open(), name.commit.version, name.commit.id).rows == example["rows"]
    lab.server.stores.shut_down()


def test_a_delta_is_a_plain_zip(lab: Lab) -> None:
    path, _name = only_delta(lab)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["0000.sst", "meta.json"]
        assert archive.getinfo("0000.sst").compress_type == zipfile.ZIP_STORED
        meta = json.loads(archive.read("meta.json"))
        assert meta["format"] == 1
        assert meta["files"][0]["bytes"] == len(archive.read("0000.sst"))


def test_a_delta_with_a_file_under_another_name_is_refused(lab: Lab, tmp_path: Path) -> None:
    path, name = only_delta(lab)
    with zipfile.ZipFile(path) as archive:
        table, meta = archive.read("0000.sst"), archive.read("meta.json")
    for evil in ("../0000.sst", "/0000.sst", "x.sst"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(evil, table)
            archive.writestr("meta.json", meta.replace(b"0000.sst", evil.encode()))
        with pytest.raises(FormatError, match="damaged"):
            read_delta(LocalPlace(lab.remote), name, path.stat().st_size, tmp_path / evil.replace("/", "_"))


def test_every_flipped_bit_of_the_metadata_is_damage_that_is_named(lab: Lab, tmp_path: Path) -> None:
    path, name = only_delta(lab)
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("meta.json").header_offset
        end = start + 30 + len("meta.json") + archive.getinfo("meta.json").compress_size
    whole = path.read_bytes()
    place = LocalPlace(lab.remote)
    for bit in range(start * 8, end * 8, 7):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            read_delta(place, name, len(damaged), tmp_path / f"delta-{bit}")
        except FormatError as problem:
            assert path.name in problem.message  # noqa: PT017 - a bit that nobody reads may be flipped unnoticed


def test_runs_that_a_driver_has_numbered_are_read(tmp_path: Path) -> None:
    for example in golden("runs.json")["runs"]:
        place = LocalPlace(tmp_path)
        place.put(names.run_name(1), example["content"].encode())
        run = read_sealed(place, names.run_name(1), RunObject)
        assert run == RunObject(RUN_FORMAT, example["run_id"], example["kept"])
        assert seal(run) == example["content"].encode() or not example["kept"]
