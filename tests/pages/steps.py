"""A document whose steps are run one after the other in one folder: its files, its commands and their output.

A Python block with ``title="name.py"`` is a file to save. A bash block is run, unless ``<!-- not run -->`` is in the
line before it. A text block that follows it is what it prints; ``...`` stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_STEP = re.compile(
    r"^(?P<mark><!-- not run -->\n)?```(?P<kind>python|bash|text)(?: title=\"(?P<name>[\w./-]+)\")?\n"
    r"(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Step:
    """One file to save, or one block of commands and what it prints (None: nobody says)."""

    line: int
    body: str
    name: str | None = None
    output: str | None = None


def find_steps(page: Path) -> list[Step]:
    """The steps of a page in their order. Raises ValueError where an output follows no command."""
    text = page.read_text(encoding="utf-8")
    steps: list[Step] = []
    for found in _STEP.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["mark"] or (found["kind"] == "python" and not found["name"]):
            continue
        if found["kind"] != "text":
            steps.append(Step(line, found["body"], found["name"]))
        elif not steps or steps[-1].name or steps[-1].output is not None:
            raise ValueError(f"{page}:{line}: this output follows no command")
        else:
            steps[-1].output = found["body"]
    return steps


def run_step(step: Step, folder: Path, environment: dict[str, str], timeout_s: float) -> str:
    """Save the file, or run the commands and return what they print; an AssertionError says what is different."""
    if step.name:
        (folder / step.name).write_text(step.body, encoding="utf-8")
        return ""
    done = subprocess.run(
        ["/bin/bash", "-ec", step.body],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"line {step.line}: {step.body}{done.stdout[-3000:]}\n{done.stderr[-4000:]}"
    if step.output is not None:
        assert is_like(step.output, done.stdout), f"line {step.line}: {step.body}{done.stdout}\n{done.stderr[-2000:]}"
    return done.stdout


def is_like(expected: str, found: str) -> bool:
    """Whether a text is as expected, where ``...`` stands for anything, also for several lines."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, found.strip(), re.DOTALL) is not None
