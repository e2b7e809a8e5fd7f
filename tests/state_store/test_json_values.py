"""What a stored object may say: each member has a pattern or bounds, and members that are not known are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.offline.adopting.records import LineageItem
from pyspark_ckpt.offline.adopting.stores import Metadata
from pyspark_ckpt.offline.handing_back.moving import HandedBack
from pyspark_ckpt.state_store import json_objects as kinds
from pyspark_ckpt.state_store.attempts.runs import RunObject
from pyspark_ckpt.state_store.attempts.winners import WinnerObject
from pyspark_ckpt.state_store.checkpoints.ownership import Owner
from pyspark_ckpt.state_store.checkpoints.query.migrations import _File
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.delta import DeltaMeta
from pyspark_ckpt.state_store.format.manifest import Manifest
from pyspark_ckpt.state_store.format.notices import Notice
from pyspark_ckpt.state_store.format.remote import Pointer, folder_of_query
from pyspark_ckpt.state_store.redistribution.assembly import Assembled
from pyspark_ckpt.state_store.redistribution.canonical import Exported
from pyspark_ckpt.state_store.redistribution.clipping import Clipped
from pyspark_ckpt.state_store.redistribution.copy_task import Copied
from pyspark_ckpt.state_store.redistribution.partition_states import Gathered
from pyspark_ckpt.state_store.redistribution.regrouping import Regrouped
from pyspark_ckpt.state_store.redistribution.splitting import Split
from pyspark_ckpt.state_store.retention.scrub import _Progress
from pyspark_ckpt.state_store.savepoints.restoring.request import FinishedRequest
from pyspark_ckpt.state_store.savepoints.savepoint import SavepointInfo
from pyspark_ckpt.state_store.transactions.parts import Part
from pyspark_ckpt.state_store.transactions.ticket import Ticket

OWN: tuple[Any, ...] = (
    *(Assembled, Clipped, Copied, DeltaMeta, Exported, FinishedRequest, Gathered, HandedBack, Manifest, Notice, Owner),
    *(Part, Pointer, Regrouped, SavepointInfo, Split, Ticket, WinnerObject, _File, _Progress),
)
"""Objects of which this release knows all members."""
LENIENT: tuple[Any, ...] = (RunObject, LineageItem, Metadata)
"""Objects of which an earlier release may not know all members, and Spark's."""
CHECKED_ELSEWHERE = {"Part.log", "Ticket.key_schema", "Ticket.place_options", "Ticket.place_options key"}
"""A name that the reader compares, and what messages show."""


def parts(kind: Any) -> Iterator[tuple[Any, str]]:  # noqa: ANN401
    """The types that a collection, or one of several types, has in it; and what they are there."""
    info = msgspec.inspect
    if isinstance(kind, info.DictType):
        yield from ((kind.key_type, " key"), (kind.value_type, ""))
    elif isinstance(kind, info.ListType | info.VarTupleType):
        yield kind.item_type, ""
    elif isinstance(kind, info.TupleType):
        yield from ((each, "") for each in kind.item_types)
    elif isinstance(kind, info.UnionType):
        yield from ((each, "") for each in kind.types)


def unbounded(kind: Any, where: str, seen: set[Any]) -> Iterator[str]:  # noqa: ANN401
    """The members below ``where`` that may be any text or any number, and the objects that may have any member."""
    info = msgspec.inspect
    for part, what in parts(kind):
        yield from unbounded(part, where + what, seen)
    if isinstance(kind, info.StrType) and kind.pattern is None and kind.max_length is None:
        yield where
    if isinstance(kind, info.IntType | info.FloatType) and (kind.ge is None or (kind.le is None and kind.lt is None)):
        yield where
    if isinstance(kind, info.StructType | info.DataclassType) and kind.cls not in seen:
        seen.add(kind.cls)
        if isinstance(kind, info.StructType) and not kind.forbid_unknown_fields and kind.cls not in LENIENT:
            yield f"{where}: takes unknown members"
        for field in kind.fields:
            if field.name != "format":
                yield from unbounded(field.type, f"{kind.cls.__name__}.{field.name}", seen)


@pytest.mark.parametrize("kind", [*OWN, RunObject, LineageItem])
def test_no_member_of_a_stored_object_may_be_any_text_or_any_number(kind: Any) -> None:  # noqa: ANN401
    found = set(unbounded(msgspec.inspect.type_info(kind), kind.__name__, set()))
    assert found <= CHECKED_ELSEWHERE


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("QueryId", ["7f4a9a0e-1b2c", "q"], ["../../x", "", "..", ".a", "a/b", "a\n", "x" * 129, "a\0"]),
        ("StoreName", ["default", "left-keyToNumValues"], ["", "..", "a/b", "\u0661", "default\n"]),
        ("SparkId", ["a-b_c.d"], ["", "../a", "a/b", "a\n"]),
        ("CommitId", ["ab.c_9"], ["a-b", "", "a/b", "a\n"]),
        ("ObjectName", ["metadata", "sources/0/1", "a/.b", "a/..b", "..."], [
            *("", "/a", "a/", "a//b", "../a", "a/..", "a/../b", ".", "a/./b", "..", "a\0b", "x" * 5000)
        ]),
        ("FileName", ["000012.sst", "..a"], ["", ".", "..", "a/b", "a\0", "x" * 256]),
        ("TableObject", [f"sst/{'0a' * 32}-{'1' * 8}.sst"], ["sst/../x.sst", f"sst/{'0a' * 32}-{'1' * 8}.sst\n"]),
        ("Location", ["s3://b/%25", "/a b/c", ""], ["/a\0", "/" + "x" * 9000]),
        ("ClassName", ["org.apache.A$B", ""], ["../x", "a b"]),
        ("RunId", ["7f4a9a0e-1b2c", "run 1", ""], ["a\nb", "x" * 257]),
        ("SourceName", ["clicks_1"], ["", "a-b", "../a"]),
        ("RandomId", ["", "0f" * 16], ["0F" * 16, "0f", "../a"]),
    ],
)  # fmt: skip
def test_each_kind_of_text_takes_what_is_written_and_nothing_that_leads_elsewhere(
    kind: str, good: list[str], bad: list[str]
) -> None:
    wanted = getattr(kinds, kind)
    decoder = msgspec.json.Decoder(wanted)
    for value in good:
        assert kinds.is_a(wanted, value), value
        assert decoder.decode(msgspec.json.encode(value)) == value
    for value in bad:
        assert not kinds.is_a(wanted, value), value
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(msgspec.json.encode(value))


@pytest.mark.parametrize("query", ["../../x", "..", "", "a/b", "/etc"])
def test_the_folder_of_a_query_is_refused_for_an_id_that_leads_elsewhere(query: str) -> None:
    with pytest.raises(FormatError, match="cannot be the id of a query"):
        folder_of_query("s3://bucket/remote", query)
