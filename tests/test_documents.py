"""What the documents show is Python, and says what it needs."""

from __future__ import annotations

import ast
import builtins

import pytest

from tests.pages.documents import PAGES, ROOT, Block, find_blocks, find_programs

BLOCKS = [block for page in PAGES for block in find_blocks(page)]


def _name(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}:{block.line}"


@pytest.mark.parametrize("block", BLOCKS, ids=_name)
def test_a_block_is_python(block: Block) -> None:
    ast.parse(block.code, _name(block))


@pytest.mark.parametrize("block", BLOCKS, ids=_name)
def test_a_block_imports_the_package_by_the_one_name(block: Block) -> None:
    imported = [
        (alias.name, alias.asname)
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (node.module if isinstance(node, ast.ImportFrom) and node.module else alias.name).startswith("pyspark_ckpt")
    ]
    assert all(each == ("pyspark_ckpt", "ckpt") for each in imported)


@pytest.mark.parametrize("page", find_programs(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_program_knows_all_names_that_it_uses(page: object) -> None:
    """Those that are no fragments are complete: nothing is left to the reader."""
    (program,) = (text for at, text in find_programs().items() if at == page)
    tree = ast.parse(program)
    known = {*dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            known.add(node.name)
        if isinstance(node, ast.arg):
            known.add(node.arg)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
        if isinstance(node, ast.alias):
            known.add(node.asname or node.name.split(".")[0])
        if isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert used <= known
