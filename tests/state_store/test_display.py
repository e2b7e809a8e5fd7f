"""What a user may have meant, and commands that are pasted into a shell."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from pyspark_ckpt.state_store.display import suggest, write_command, write_rescale


@pytest.mark.parametrize(
    ("name", "meant"),
    [("memoryLimt", " Did you mean 'memoryLimit'?"), ("MEMORYLIMIT", " Did you mean 'memoryLimit'?"), ("xyz", "")],
)
def test_the_most_similar_name_is_suggested(name: str, meant: str) -> None:
    assert suggest(name, ["memoryLimit", "localDir"]) == meant


def test_nothing_is_suggested_where_nothing_is_known() -> None:
    assert suggest("name", []) == ""


def test_a_command_reaches_its_program_word_by_word() -> None:
    written = write_command("savepoint", "delete", "/it's $HOME/a b", s3Endpoint="http://host:1/?a&b")
    assert (written[0], written[-1]) == ("`", "`")
    assert shlex.split(written[1:-1]) == [
        *("pyspark-ckpt", "savepoint", "delete", "/it's $HOME/a b"),
        *("-o", "s3Endpoint=http://host:1/?a&b"),
    ]


@pytest.mark.parametrize("name", ["a\u3000b", "nbsp\u00a0", "zwj\u200dx", "new\nline0", "it's\t\\ü", "q'u o$te"])
def test_a_command_names_what_it_should_in_a_shell_that_is_given_what_is_printed(name: str) -> None:
    shown = write_command(name)[1:-1].removeprefix("pyspark-ckpt ")
    assert shown.isprintable()
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf %s {shown}"], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    assert done.stdout.decode() == name


def test_a_copy_with_state_in_a_folder_of_its_id_gets_a_new_id() -> None:
    assert write_rescale("/a", 3) == "`pyspark-ckpt checkpoint rescale /a NEW_CHECKPOINT -n 3`"
    command = "`pyspark-ckpt checkpoint rescale /a NEW_CHECKPOINT -n PARTITIONS --query-id new -o remote=/b`"
    assert write_rescale("/a", remote="/b") == command
