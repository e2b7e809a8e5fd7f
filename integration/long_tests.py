"""The tests that take long. Of these, each run of ``make test`` has an eleventh: see ``integration.turns``.

``python -m integration.long_tests JUNIT.XML`` writes their names anew, from the report of a run of all of them:
``CKPT_TURN=all make test-python PYTEST_ADDOPTS="--junitxml=JUNIT.XML"``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

LONG_S = 1.0
NAMES = Path(__file__).with_name("long_tests.txt")
ROOT = Path(__file__).parents[1]


def read_names() -> frozenset[str]:
    """Return the names of long tests, each for all its cases."""
    return frozenset(NAMES.read_text(encoding="utf-8").splitlines())


def name_of(node_id: str) -> str:
    """Return the name of a test without its case."""
    return node_id.partition("[")[0]


def find_long(report: Path) -> set[str]:
    """Return the names of the tests of which a case took ``LONG_S`` or more in a reported run."""
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest's own report
    return {
        _locate(case.attrib["classname"], name_of(case.attrib["name"]))
        for case in cases
        if float(case.attrib["time"]) >= LONG_S
    }


def _locate(module: str, name: str) -> str:
    """Return a node id: the module's parts are folders, a file, and perhaps a class."""
    parts = module.split(".")
    count = next(n for n in range(len(parts), 0, -1) if (ROOT / Path(*parts[:n])).with_suffix(".py").is_file())
    file = Path(*parts[:count]).with_suffix(".py").as_posix()
    return "::".join([file, *parts[count:], name])


if __name__ == "__main__":
    NAMES.write_text("".join(f"{name}\n" for name in sorted(find_long(Path(sys.argv[1])))), encoding="utf-8")
