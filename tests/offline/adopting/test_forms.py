"""Checkpoints of Spark 4.3 with checksums of rows, and with Avro as well: they move in and out, and damage is told."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from pyspark_ckpt.moving import adopt, hand_back
from pyspark_ckpt.offline.adopting.streams import open_stream
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.errors import CkptError, FormatError
from tests.offline.adopting.test_handing_back import known
from tests.offline.adopting.test_streams import write_lz4
from tests.offline.adopting.written import unpack_all

FORMS = ("sums", "avro")
STATES = ("total", "ids", "words")
_CONF = "spark.sql.streaming.stateStore."


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_all("4.3-forms", tmp_path_factory.mktemp("forms"))


def _read(checkpoint: Path, state: str) -> list[str]:
    """The rows of a state, but for the times at which they expire: each checkpoint was written at its own time."""
    with open_state(checkpoint, operator=0, state=state) as found:
        rows = found.to_arrow().to_pylist()
    for row in rows:
        row.pop("partition", None)
        row["value"].pop("ttlExpirationMs", None)
    return sorted(map(repr, rows))


def test_rows_are_the_same_whatever_form_they_had(checkpoints: Path, tmp_path: Path) -> None:
    for form in FORMS:
        assert {each.name for each in adopt(checkpoints / form, tmp_path / form, 3).states} > set(STATES)
    for state in STATES:
        sums, avro = (_read(tmp_path / form, state) for form in FORMS)
        assert sums == avro
        assert len(sums) >= 8


@pytest.mark.parametrize("form", FORMS)
def test_state_that_moves_in_out_and_in_again_is_the_same(form: str, checkpoints: Path, tmp_path: Path) -> None:
    adopted = adopt(checkpoints / form, tmp_path / "ours", 2)
    assert known(hand_back(tmp_path / "ours", tmp_path / "out").states) == known(adopted.states)
    confs = json.loads((tmp_path / "out" / "offsets" / "2").read_text().splitlines()[1])["conf"]
    assert confs[f"{_CONF}rowChecksum.enabled"] == "true"
    assert confs[f"{_CONF}encodingFormat"] == ("avro" if form == "avro" else "unsaferow")
    assert known(adopt(tmp_path / "out", tmp_path / "again", 2).states) == known(adopted.states)


def test_a_schema_of_values_that_is_lost_is_named(checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints / "avro", tmp_path / "copy")
    (schema,) = (tmp_path / "copy" / "state" / "0" / "_stateSchema" / "default").iterdir()
    schema.unlink()
    with pytest.raises(CkptError, match="_stateSchema"):
        adopt(tmp_path / "copy", tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_changed_row_of_a_log_is_not_moved(checkpoints: Path, tmp_path: Path) -> None:
    """The checksums of files do not tell it: the log is written anew."""
    path = checkpoints / "sums" / "state" / "0" / "1" / "3.changelog"
    whole, draw, refused = path.read_bytes(), random.Random(5), 0
    with open_stream(path, "the log") as stream:
        content = stream.peek(1 << 20)
    for number in range(40):
        changed = bytearray(content)
        changed[draw.randrange(4, len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(write_lz4(bytes(changed)))
        try:
            adopt(checkpoints / "sums", tmp_path / str(number))
        except FormatError:
            refused += 1
    path.write_bytes(whole)
    assert refused > 30
