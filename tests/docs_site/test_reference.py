"""The reference has every public name, with what its docstring says."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

import pytest
import yaml

import pyspark_ckpt
from docs.site.definitions import find_definition, find_source, list_names
from pyspark_ckpt import testing
from tests.pages.documents import ROOT

API: list[dict[str, Any]] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["extra"]["api"]
SHOWN = [
    (module, name, page.get("elsewhere", {}).get(name) or find_definition(module, name))
    for page in API
    for module, name in list_names(page)
]
MODULES = ("errors", "monitoring", "moving", "operators", "reading", "session", "testing", "writing")
"""Modules that are public names."""
CONSTANTS = {"PROVIDER_CLASS", "__version__"}


def test_every_public_name_is_on_one_page() -> None:
    shown = Counter((module, name) for module, name, _ in SHOWN)
    public = {("pyspark_ckpt", name) for name in {*vars(pyspark_ckpt)["__all__"], "__version__"} - set(MODULES)}
    for module in MODULES:
        listed = getattr(pyspark_ckpt, module).__all__
        public |= {(f"pyspark_ckpt.{module}", name) for name in listed if ("pyspark_ckpt", name) not in public}
    of_frames = {("pyspark_ckpt.testing", name) for name in testing.__all__}  # the same names, for tests
    assert set(shown) == public | of_frames
    assert set(shown.values()) == {1}


@pytest.mark.parametrize(("module", "name", "definition"), SHOWN, ids=[f"{module}.{name}" for module, name, _ in SHOWN])
def test_a_page_shows_what_users_import(module: str, name: str, definition: str) -> None:
    public = getattr(importlib.import_module(module), name)
    if find_source(definition):
        found = importlib.import_module(definition)
    else:
        where, _, last = definition.rpartition(".")
        found = _find(where, last)
    assert getattr(public, "__func__", public) is found
    assert name in CONSTANTS or public.__doc__


def _find(where: str, name: str) -> Any:  # noqa: ANN401 - anything public
    if find_source(where):
        return getattr(importlib.import_module(where), name)
    module, _, holder = where.rpartition(".")
    return getattr(getattr(importlib.import_module(module), holder), name)


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pyspark_ckpt\.savepoints has no nothing"):
        find_definition("pyspark_ckpt.savepoints", "nothing")
