"""What the JVM may ask of the state server: requests, options and the hello, damaged."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.state_store import options
from pyspark_ckpt.state_store.errors import InvalidInputError, ProcessError
from pyspark_ckpt.state_store.server.process import _hello
from pyspark_ckpt.state_store.server.received_secrets import ReceivedSecrets
from tests.fuzz.mutations import any_damage, damaged, fuzzed, read_or_refuse
from tests.labs.lab import DESCRIPTOR, Lab

TREE = {"ConflictError", "NotFoundError", "InvalidInputError", "LifecycleError", "StorageError", "FormatError"}


class OpenLab(Lab):
    """A lab with an open store."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.handle = self.open()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenLab]:
    made = OpenLab(tmp_path_factory.mktemp("lab"))
    made.grow(made.handle, 2)
    yield made
    made.server.stores.shut_down()


HANDLE, TXN = "1", "2"
"""Stand for the handle and the transaction that are open."""
METHODS: dict[str, dict[str, Any]] = {
    "open": {
        "state_dir": "/s",
        "checkpoint_root": "/c",
        "operator": 0,
        "partition": 3,
        "name": "default",
        "run_id": "r",
        "format": 2,
        "min_versions_to_retain": 2,
        "options": {"snapshotEveryVersions": "5"},
    },
    "begin": {"handle": HANDLE, "version": 0, "id": None, "attempt": 5, "key_schema": "", "num_partitions": 1},
    "create_state": {"txn": TXN, "name": "other", "descriptor": DESCRIPTOR},
    "drop_state": {"txn": TXN, "name": "other"},
    "commit": {"txn": TXN, "files": ["0.sst"], "rows": {"1": 1}, "num_partitions": 1},
    "replay": {"handle": HANDLE, "version": 2, "start": 1, "id": None, "start_id": None},
    "open_changes": {"handle": HANDLE, "first": 1, "last": 2, "id": None},
    "next_changes": {"feed": 1},
    "close_changes": {"feed": 1},
    "await_ingest": {"handle": HANDLE},
    "snapshot": {"handle": HANDLE, "force": False},
    "stats": {},
}


@pytest.mark.parametrize("method", METHODS)
@fuzzed
@given(content=st.data(), surrogates=st.booleans())
def test_a_request_is_answered_or_refused_and_is_no_defect(
    method: str,
    content: st.DataObject,
    surrogates: bool,  # noqa: FBT001
    lab: OpenLab,
) -> None:
    damage = content.draw(any_damage(json.dumps(METHODS[method]).encode()))
    text = damage.decode("utf-8", errors="surrogateescape" if surrogates else "replace")
    if TXN in text:
        text = text.replace(f'"{TXN}"', str(lab.begin(lab.handle, 0).number))
    answer = json.loads(lab.server._dispatcher.call(method, text.replace(f'"{HANDLE}"', str(lab.handle))))
    if "error" in answer:
        assert answer["error"]["kind"] in TREE, answer["error"]["message"]
    for txn in list(lab.server.stores._transactions):
        lab.server.call("abort", txn=txn)
    for feed in list(lab.server.stores._feeds):
        lab.server.call("close_changes", feed=feed)
    assert sorted(path.name for path in lab.checkpoint.parent.iterdir()) == ["checkpoint", "local"]


@pytest.mark.parametrize("name", ["../../elsewhere", "a/b", "..", "", "a\0", "x" * 300])
def test_a_store_name_that_leads_out_is_refused(name: str, lab: OpenLab) -> None:
    answer = json.loads(lab.server._dispatcher.call("open", json.dumps({**METHODS["open"], "name": name})))
    assert answer["error"]["kind"] == "InvalidInputError"


_VALID = {key: str(row.default) or "x" for key, row in options.table().items()}


@fuzzed
@given(
    st.sampled_from(sorted(_VALID)).flatmap(
        lambda key: st.tuples(
            st.just(key) | st.text(max_size=12),
            damaged(_VALID[key].encode()).map(lambda content: content.decode("utf-8", errors="replace")),
        )
    )
)
def test_an_option_is_read_or_refused_by_its_name(given: tuple[str, str]) -> None:
    key, value = given
    found = read_or_refuse(lambda: options.parse({key: value}), value.encode(), key)
    if found is not None:
        assert 0 < found.memory_limit_bytes < 2**63
        assert found.start_timeout_s < 10**17


@pytest.mark.parametrize("value", ["\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668\u0669", "9" * 15 + "t", "1e9"])
def test_a_size_that_no_machine_has_is_refused(value: str) -> None:
    with pytest.raises(InvalidInputError, match="memoryLimit"):
        options.parse({"memoryLimit": value})


@fuzzed
@given(
    any_damage(b'{"protocol": 2, "token": "t", "executor_dir": "/x", "executor": "5", "options": {"logLevel": "INFO"}}')
)
def test_a_hello_is_read_or_refused(line: bytes) -> None:
    with suppress(ProcessError):  # nothing, or a hello of another protocol: the JVM and this Python do not fit
        read_or_refuse(lambda: _hello(line), line, "")


@fuzzed
@given(any_damage(b'{"number": 1, "secrets": {"fs.s3a.secret.key": "not-to-be-shown"}}'))
def test_secrets_are_kept_or_refused_without_being_shown(line: bytes) -> None:
    try:
        ReceivedSecrets().keep(line)
    except InvalidInputError as problem:
        refused = "".join(traceback.format_exception(problem))
    else:
        refused = ""
    assert "not-to-be-shown" not in refused
