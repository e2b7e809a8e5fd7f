"""The command ``serve``, and what is imported for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from pyspark_ckpt.cli.main import main
from tests.test_cli_streams import interruptible
from tests.test_extras import ROOT, bare

__all__ = ["bare", "interruptible"]


@pytest.mark.usefixtures("interruptible")
def test_the_command_serves_until_it_is_interrupted(frozen: Path) -> None:
    command = [sys.executable, "-m", "pyspark_ckpt", "query", "serve", str(frozen)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            url, told = process.stdout.readline().strip(), process.stdout.readline()
            with httpx.Client(trust_env=False, follow_redirects=True, headers={"Accept": "text/html"}) as client:
                answer = client.get(url)
                assert answer.status_code == 200
                assert str(frozen) in answer.text
                assert url.partition("=")[2] not in answer.text
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Ctrl-C ends it" in told
    assert errors.strip() == "pyspark-ckpt: interrupted"


@pytest.mark.usefixtures("interruptible")
def test_the_terminal_names_a_folder_that_is_missing(frozen: Path, tmp_path: Path) -> None:
    missing = [str(tmp_path / name) for name in ("later", "saved")]
    command = ["query", "serve", str(frozen), missing[0], "--savepoints", missing[1]]
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark_ckpt", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stderr is not None
            told = [process.stderr.readline().strip() for _ in missing]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert told == [f"pyspark-ckpt: {each} does not exist. The page shows it once it exists." for each in missing]
    assert errors.strip() == "pyspark-ckpt: interrupted"


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_page_while_a_place_does_not_answer() -> None:
    """Long before ``placeTimeout``: nothing is asked again."""
    with socket.create_server(("127.0.0.1", 0)) as deaf, ExitStack() as connections:
        options = [f"s3Endpoint=http://127.0.0.1:{deaf.getsockname()[1]}", "s3Addressing=path", "placeTimeout=90s"]
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pyspark_ckpt",
                "query",
                "serve",
                "s3://bucket/a",
                *(f"-o{each}" for each in options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        ) as process:
            connections.enter_context(deaf.accept()[0])  # the first page is read in the background
            process.send_signal(signal.SIGINT)
            try:
                _, errors = process.communicate(timeout=90)
            finally:
                process.kill()
    assert (process.returncode, errors) == (130, "pyspark-ckpt: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "70000"), "Invalid value for '--port'"),
        (("-o", "s3Endpont=x"), "Did you mean 's3En"),
    ],
)
def test_wrong_calls_are_told_in_words_of_the_command(
    frozen: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main(["query", "serve", str(frozen), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_missing_extra_is_named(bare: Path, frozen: Path, tmp_path: Path) -> None:
    for path in bare.iterdir():
        if not path.name.startswith(("starlette", "uvicorn")):
            (tmp_path / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pyspark_ckpt", "query", "serve", str(frozen)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert 'pip install "pyspark-ckpt[web]"' in done.stderr


def test_the_page_is_served_without_spark(bare: Path, frozen: Path) -> None:
    code = f"""
import sys
import urllib.request
import pyspark_ckpt as ckpt

with ckpt.monitoring.serve_web_page({str(frozen)!r}) as page:
    with urllib.request.urlopen(page.url) as answer:
        assert answer.status == 200
        assert b"last batch" in answer.read()
assert not any(name.split(".")[0] in {{"pyspark", "boto3"}} for name in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": str(bare), "no_proxy": "*"},
        cwd=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
