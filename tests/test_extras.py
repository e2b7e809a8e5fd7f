"""The package without its extras: where PySpark and the clients of places are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyspark_ckpt
from pyspark_ckpt.operators.declarations.reducing_states import AggregatingState, ReducingState
from pyspark_ckpt.operators.declarations.states import ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.timers import Timers
from pyspark_ckpt.operators.declarations.ttl import Ttl
from tests.compat.frozen import unpack
from tests.offline.reading.written import Written

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("pyspark", "azure", "boto", "google", "s3transfer", "hdfs_native", "_distutils_hack", "__editable__")
AT, DECIMAL = pa.timestamp("us", "UTC"), pa.decimal128(12, 2)
PAIR = pa.struct([("at", AT), ("price", DECIMAL)])
EACH = pa.struct(
    [
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("whole", pa.int8()),
        ("part", pa.float32()),
        ("at", AT),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("took", pa.duration("us")),
        ("price", DECIMAL),
        ("exact", pa.decimal128(38, 10)),
        ("pairs", pa.list_(PAIR)),
        ("named", pa.map_(pa.string(), PAIR)),
    ]
)
STATES: Any = {
    "each": (ValueState("each", "binary"), {"value": EACH}),
    "pairs": (ListState("pairs", "binary", ttl=Ttl("1 hour", clock="event")), {"element": PAIR}),
    "prices": (ListState("prices", "binary"), {"element": DECIMAL}),
    "by_pair": (MapState("by_pair", "binary", "binary"), {"key": PAIR, "value": pa.list_(EACH)}),
    "by_day": (MapState("by_day", "date", "binary", ttl="1 hour"), {"key": pa.date32(), "value": pa.duration("us")}),
    "most": (ReducingState("most", "binary", "max"), {"value": DECIMAL}),
    "last": (
        AggregatingState("last", "binary", create=dict, add=lambda kept, pair: {**kept, "it": pair}, result=len),
        {"accumulator": pa.map_(pa.string(), PAIR)},
    ),
    "due": (Timers("due", clock="event"), {}),
    "soon": (Timers("soon", clock="processing"), {}),
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules without those of the extras."""
    folder = tmp_path_factory.mktemp("bare")
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith(LEFT_OUT) and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    (folder / "pyspark_ckpt").symlink_to(ROOT / "pyspark_ckpt")
    distribution = folder / f"pyspark_ckpt-{pyspark_ckpt.__version__}.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: pyspark-ckpt\nVersion: {pyspark_ckpt.__version__}\n"
    )
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("v1", "keyed", tmp_path_factory.mktemp("frozen") / "keyed")


def _fill(number: int) -> Any:  # noqa: ANN401
    at = datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(hours=number, microseconds=number)
    price = Decimal(number * 7) / 4
    numbers = (bool(number % 2), number, number / 2)
    instants = (at, at.replace(tzinfo=None), at.date(), timedelta(days=number))
    pairs = ([(at, price), None], {"a": (at, None), "b": None})
    each = (f"text {number}", bytes([number]), *numbers, *instants, price, Decimal(number).scaleb(-10), *pairs)

    def fill(states: Any) -> None:  # noqa: ANN401
        states.each.update(each)
        states.pairs.add_all([(at, price), (None, None)])
        states.prices.add(price)
        states.by_pair.put((at, price), [each, None])
        states.by_day.put_all({at.date(): timedelta(hours=number), date(1, 1, 1): None})
        states.most.add(price)
        states.last.add((at, price))
        states.due.register(at, f"due {number}")
        states.soon.register(at)

    return fill


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint with a state of every kind, with keys and values of every type, in a snapshot and in deltas."""
    made = Written(tmp_path_factory.mktemp("kinds"), {"who": PAIR, "local": pa.timestamp("us")}, partitions=2)
    keys = [((datetime(2024, 1, n, tzinfo=timezone.utc), Decimal(n)), datetime(2024, 1, n)) for n in range(1, 9)]  # noqa: DTZ001
    made.batch(STATES, [(key, _fill(n)) for n, key in enumerate(keys[:5])], now_ms=1_704_067_200_000)
    made.snapshot()
    made.batch(STATES, [(key, _fill(n)) for n, key in enumerate(keys) if n > 2], now_ms=1_704_067_260_000)
    yield made.lab.checkpoint
    made.close()


def run(bare: Path | None, code: str, *arguments: object) -> str:
    """Run a program where only the modules in ``bare`` are, or where all are."""
    done = subprocess.run(
        [sys.executable, *([] if bare is None else ["-S"]), "-c", code, *map(str, arguments)],
        env=os.environ if bare is None else {**os.environ, "PYTHONPATH": str(bare)},
        cwd=bare or ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_state_is_read_without_extras(bare: Path, checkpoint: Path) -> None:
    code = """
import sys
import pyspark_ckpt as ckpt

with ckpt.reading.open_state(sys.argv[1]) as every:
    names = {(state.uid, state.name) for state in every.states}
for uid, name in names:
    with ckpt.reading.open_state(sys.argv[1], uid=uid, state=name) as state:
        assert state.to_pandas().shape[0] == state.count(), name
        print(name)
"""
    assert {"recent", "words", "default"} <= set(run(bare, code, checkpoint).split())


READ = """
import sys
import pyspark_ckpt as ckpt

with ckpt.reading.open_state(sys.argv[1]) as every:
    states = every.states
for each in states:
    with ckpt.reading.open_state(sys.argv[1], uid=each.uid, state=each.name) as state:
        table = state.to_arrow()
        assert table.num_rows == state.count() > 0, each
        print(each, table.schema, table.to_pylist(), state.to_pandas().to_string())
        print([sum(batch.num_rows for batch in state.batches(part)) for part in range(state.partitions)])
        for key in table["key"].to_pylist():
            print(key, state.get(key), state.get(tuple(key.values())), state.rows_of(key).to_pylist())
assert "pyspark" not in sys.modules
"""
COMMANDS = """
import sys
from pyspark_ckpt.cli.main import main

checkpoint, folder, *states = sys.argv[1:]
for call in (
    f"checkpoint list {checkpoint}",
    f"checkpoint inspect {checkpoint} --lineage --key-groups",
    f"checkpoint verify {checkpoint}",
    f"savepoint create {checkpoint} {folder}/native --digests",
    f"savepoint create {checkpoint} {folder}/canonical --kind canonical",
    f"savepoint inspect {folder}/native",
    f"savepoint inspect {folder}/canonical",
    f"savepoint verify {folder}/canonical",
    f"savepoint restore {folder}/canonical {folder}/restored -n 3",
    *(f"state read {checkpoint} --uid it --state {state}" for state in states),
):
    assert main(call.split()) == 0, call
"""


@pytest.mark.in_turn
def test_states_of_every_type_are_read_without_extras_as_with_them(bare: Path, kinds: Path) -> None:
    assert run(bare, READ, kinds) == run(None, READ, kinds)


@pytest.mark.in_turn
def test_states_of_every_type_are_saved_and_restored_without_extras(bare: Path, kinds: Path, tmp_path: Path) -> None:
    run(bare, COMMANDS, kinds, tmp_path, *STATES)
    for name in ("native", "canonical", "restored"):
        text = run(bare, READ, tmp_path / name)
        assert all(state in text for state in STATES)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["aggregation", "deduplication-and-limit", "join", "session-windows"])
def test_states_of_sparks_operators_are_read_without_extras(name: str, bare: Path, tmp_path: Path) -> None:
    stored = unpack("v1", name, tmp_path / name)
    code = """
import sys
import pyspark_ckpt as ckpt

with ckpt.reading.open_state(sys.argv[1]) as every:
    for each in every.states:
        names = {"operator": each.operator.number, "store": each.store, "state": each.name}
        with ckpt.reading.open_state(sys.argv[1], **names) as state:
            print(state.to_arrow().num_rows)
"""
    assert any(int(rows) for rows in run(bare, code, stored).split())


@pytest.mark.in_turn
def test_every_command_runs_without_extras(bare: Path, checkpoint: Path, tmp_path: Path) -> None:
    code = """
import sys
from pyspark_ckpt.cli.main import main

checkpoint, folder = sys.argv[1:]
for call in (
    f"checkpoint list {checkpoint}",
    f"checkpoint inspect {checkpoint} --lineage --key-groups",
    f"checkpoint verify {checkpoint}",
    f"checkpoint gc {checkpoint} --dry-run",
    f"savepoint create {checkpoint} {folder}/native",
    f"savepoint create {checkpoint} {folder}/canonical --kind canonical",
    f"savepoint list {folder}",
    f"savepoint inspect {folder}/native",
    f"savepoint verify {folder}/native",
    f"savepoint restore {folder}/canonical {folder}/restored -n 3",
    f"savepoint delete {folder}/canonical",
    f"checkpoint rescale {checkpoint} {folder}/rescaled -n 3 --query-id new",
    f"state read {folder}/restored --uid kinds --state words",
    f"state count {checkpoint} --uid kinds --state names",
    f"state get {checkpoint} --uid kinds --state recent --key 3",
):
    assert main(call.split()) == 0, call
assert not {"pyspark", "azure", "boto3", "google", "hdfs_native"} & set(sys.modules)
"""
    text = run(bare, code, checkpoint, tmp_path)
    assert "keyed kinds" in text
    assert f"by pyspark-ckpt {pyspark_ckpt.__version__}\n" in text


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("call", "extra"),
    [
        ("ckpt.reading.open_state('s3://bucket/checkpoint')", "s3"),
        ("ckpt.reading.open_state('s3a://bucket/checkpoint')", "s3"),
        ("ckpt.reading.open_state('hdfs://host/checkpoint')", "hdfs"),
        ("ckpt.reading.open_state('gs://bucket/checkpoint')", "gcs"),
        ("ckpt.reading.open_state('abfss://c@account.dfs.core.windows.net/checkpoint')", "azure"),
        ("ckpt.configure(None)", "spark"),
        ("ckpt.keyed(None, by='key', uid='uid')", "spark"),
        ("ckpt.reading.register_state_source(None)", "spark"),
    ],
)
def test_what_needs_an_extra_names_it(call: str, extra: str, bare: Path) -> None:
    code = f"""
import pyspark_ckpt as ckpt

try:
    {call}
except ckpt.ProcessError as problem:
    print(problem)
"""
    text = run(bare, code)
    assert f'pip install "pyspark-ckpt[{extra}]"' in text
    assert sys.executable in text


def test_the_command_line_names_the_extra_of_a_place(bare: Path) -> None:
    code = """
import sys
from pyspark_ckpt.cli.main import main

sys.stderr = sys.stdout
print(main(["checkpoint", "list", "s3://bucket/checkpoint"]))
"""
    text = run(bare, code)
    assert 'pip install "pyspark-ckpt[s3]"' in text
    assert text.splitlines()[-1] == "1"


def test_help_imports_nothing_slow() -> None:
    slow = {"rich", "numpy", "pyarrow", "pandas", "rocksdict", "pyspark", "azure", "boto3", "google", "hdfs_native"}
    code = f"""
import sys
from pyspark_ckpt.cli.main import main

for call in ("--help", "checkpoint --help", "state get --help", "--version"):
    assert main(call.split()) == 0
print({slow!r} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_rows_for_a_new_query_name_the_extra_when_pyspark_is_missing(bare: Path, tmp_path: Path) -> None:
    code = """
import sys
import pyarrow as pa
import pyspark_ckpt as ckpt

state = ckpt.ValueState("n", "bigint")
rows = pa.table({"user": ["a"], "value": [1]})
try:
    ckpt.writing.write_state(None, sys.argv[1], [ckpt.writing.Put("u", state, rows, key="user string")])
except ckpt.ProcessError as problem:
    print(problem)
"""
    told = run(bare, code, tmp_path / "saved")
    assert "needs the package pyspark" in told
    assert "pyspark-ckpt[spark]" in told
    assert not (tmp_path / "saved").exists()
