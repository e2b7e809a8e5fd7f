"""Hooks of MkDocs: what is outside of docs/ becomes pages, and links lead to them."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

from docs.site import built, links
from docs.site.definitions import find_definition, list_names
from docs.site.search import choose_boost

LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".scala": "scala", ".xml": "xml"}


def on_config(config: Any) -> Any:  # noqa: ANN401 - MkDocs is not installed where types are checked
    """Give headings the anchors that they have on GitHub."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, _: links.make_anchor(text)
    return config


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401 - as above
    """Add a page for each file of the repository that the pages lead to, and the pages of the API."""
    from mkdocs.structure.files import File

    origins, shown = config.extra["origins"], config.extra["shown"] = {}, {}
    for file in files.documentation_pages():
        origins[file.src_uri] = f"{links.DOCS}/{file.src_uri}"
    for path, uri in links.ROOT_PAGES.items():
        if path != f"{links.DOCS}/README.md":
            origins[uri] = path
            files.append(File.generated(config, uri, content=(links.ROOT / path).read_text(encoding="utf-8")))
    for path in _find_files([*origins.values(), f"{links.DOCS}/README.md"]):
        uri = links.find_uri(path)
        if uri not in origins and uri.endswith(".md"):
            shown[uri] = path
            files.append(File.generated(config, uri, content=_show_file(path)))
    for page in config.extra["api"]:
        files.append(File.generated(config, f"reference/{page['page']}.md", content=_show_api(page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ANN401, ARG001 - as above
    """Let links lead to pages of the site, and give the page its weight in a search."""
    origin = config.extra["origins"].get(page.file.src_uri)
    path = origin or config.extra["shown"].get(page.file.src_uri)
    if path and (boost := choose_boost(path)) is not None:
        page.meta.setdefault("search", {"boost": boost})
    return links.rewrite(markdown, origin) if origin else markdown


def on_post_build(config: Any) -> None:  # noqa: ANN401 - as above
    """Refuse links that lead nowhere, and list those to other sites in a file beside the site."""
    site = Path(config.site_dir)
    pages = built.read_pages(site)
    if dead := built.find_dead_links(pages):
        raise ValueError("\n".join(dead))
    found = "".join(f"{target}\n" for target in built.find_outside_links(pages))
    site.with_name(f"{site.name}-links.txt").write_text(found, encoding="utf-8")


def _find_files(pages: list[str]) -> list[str]:
    """The files to which pages lead."""
    targets = (
        links.find_file(page, target)
        for page in pages
        for target in links.find_links((links.ROOT / page).read_text(encoding="utf-8"))
        if not links.is_outside(target)
    )
    return sorted(set(targets))


def _show_file(path: str) -> str:
    """A page with the text of a file, or with the cells of a notebook."""
    text = (links.ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        return links.rewrite(_show_notebook(path, text), path)
    name, language = posixpath.basename(path), LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"# {name}\n\n`{path}` in the repository.\n\n`````{language}\n{text}\n`````\n"


def _show_notebook(path: str, text: str) -> str:
    first, *cells = json.loads(text)["cells"]
    parts = ["".join(first["source"]), f"This page is a notebook: `{path}` in the repository."]
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
    return "\n\n".join(parts) + "\n"


def _show_api(page: dict[str, Any]) -> str:
    """A page that shows the docstrings of some public names."""
    parts = [f"# {page['title']}", page["about"]]
    elsewhere = page.get("elsewhere", {})
    parts += [f"::: {elsewhere.get(name) or find_definition(module, name)}" for module, name in list_names(page)]
    return "\n\n".join(parts) + "\n"
