"""The steps of the tutorial are found, and their files are programs as those of other documents are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.pages.documents import ROOT
from tests.pages.steps import Step, find_steps, is_like, run_step

STEPS = find_steps(ROOT / "docs/tutorial.md")
FILES = [step for step in STEPS if step.name]


@pytest.mark.parametrize("step", FILES, ids=lambda step: f"{step.line}-{step.name}")
def test_a_file_imports_the_package_by_the_one_name(step: Step) -> None:
    tree = ast.parse(step.body)
    names = [(each.name, each.asname) for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name for name in names if name[0].startswith("pyspark_ckpt")} <= {("pyspark_ckpt", "ckpt")}
    assert not [module for module in modules if module.startswith("pyspark_ckpt")]
    assert max(map(len, step.body.splitlines())) <= 120


def test_nearly_all_commands_say_what_they_print() -> None:
    silent = [step.body for step in STEPS if step.name is None and step.output is None]
    assert [body.splitlines()[-1] for body in silent] == ["kill -9 $!"]


def test_steps_are_files_commands_and_outputs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '<!-- not run -->\n```bash\nfalse\n```\n```python\nfragment\n```\n```python title="a.py"\nprint(1)\n```\n'
        "```bash\npython3 a.py\n```\n```text\n1\n```\n",
        encoding="utf-8",
    )
    save, run = find_steps(page)
    assert (save.name, save.body) == ("a.py", "print(1)\n")
    assert (run.body, run.output) == ("python3 a.py\n", "1\n")
    assert run_step(save, tmp_path, {}, 60) == ""
    assert run_step(run, tmp_path, {}, 60) == "1\n"
    with pytest.raises(AssertionError, match=r"python3 a\.py"):
        run_step(Step(1, run.body, output="2\n"), tmp_path, {}, 60)
    with pytest.raises(AssertionError, match="false"):
        run_step(Step(1, "false\ntrue\n"), tmp_path, {}, 60)


def test_an_output_without_a_command_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```text\n1\n```\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.md:1: this output follows no command"):
        find_steps(page)


def test_dots_stand_for_anything() -> None:
    assert is_like("a ... c\n...\nz", "a b c\nx\ny\nz\n")
    assert is_like("1.5 (x)", "1.5 (x)")
    assert not is_like("1.5", "1x5")
    assert not is_like("a ...", "b a c")
