"""The package without its extras: where PySpark, boto3 and hdfs-native are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import pyspark_ckpt
from tests.compat.frozen import unpack

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("pyspark", "boto", "s3transfer", "hdfs_native", "_distutils_hack", "__editable__")


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


def run(bare: Path, code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(bare)},
        cwd=bare,
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

with ckpt.open_state(sys.argv[1]) as every:
    names = {(state.uid, state.name) for state in every.states}
for uid, name in names:
    with ckpt.open_state(sys.argv[1], uid=uid, state=name) as state:
        assert state.to_pandas().shape[0] == state.count(), name
        print(name)
"""
    assert {"recent", "words", "default"} <= set(run(bare, code, checkpoint).split())


def test_states_of_sparks_operators_are_read_without_extras(bare: Path, tmp_path: Path) -> None:
    join = unpack("v1", "join", tmp_path / "join")
    code = """
import sys
import pyspark_ckpt as ckpt

with ckpt.open_state(sys.argv[1]) as every:
    for each in every.states:
        with ckpt.open_state(sys.argv[1], store=each.store, state=each.name) as state:
            print(state.to_arrow().num_rows)
"""
    assert any(int(rows) for rows in run(bare, code, join).split())


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
    f"rescale {checkpoint} {folder}/rescaled -n 3 --query-id new",
    f"state read {folder}/restored --uid kinds --state words",
    f"state count {checkpoint} --uid kinds --state names",
    f"state get {checkpoint} --uid kinds --state recent --key 3",
):
    assert main(call.split()) == 0, call
assert not {"pyspark", "boto3", "hdfs_native"} & set(sys.modules)
"""
    text = run(bare, code, checkpoint, tmp_path)
    assert "keyed kinds" in text
    assert f"by pyspark-ckpt {pyspark_ckpt.__version__}\n" in text


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        ("ckpt.open_state('s3://bucket/checkpoint')", "s3"),
        ("ckpt.open_state('s3a://bucket/checkpoint')", "s3"),
        ("ckpt.open_state('hdfs://host/checkpoint')", "hdfs"),
        ("ckpt.configure(None)", "spark"),
        ("ckpt.keyed(None, by='key', uid='uid')", "spark"),
        ("ckpt.register_state_source(None)", "spark"),
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
    slow = {"rich", "numpy", "pyarrow", "pandas", "rocksdict", "pyspark", "boto3", "hdfs_native"}
    code = f"""
import sys
from pyspark_ckpt.cli.main import main

for call in ("--help", "checkpoint --help", "state get --help", "--version"):
    assert main(call.split()) == 0
print({slow!r} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
