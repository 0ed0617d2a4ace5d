"""The documentation site: it builds without a warning, is complete, and loads nothing from afar."""

from __future__ import annotations

import importlib.util
import inspect
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import draftverify
from draftverify import testing
from kinds import lacking, need
from processes import run_python
from test_adapters_docs import FUNCTIONS as ADAPTERS
from test_adapters_docs import MODULES
from test_docs import PAGES, ROOT

DOCS = ROOT / "docs"
TOOLS = ("sphinx", "numpydoc", "myst_parser", "furo", "matplotlib")
# What makes a browser fetch something by itself. Links are for readers to follow.
FETCHING = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("image", "href"),
    ("image", "xlink:href"),
    ("use", "href"),
    ("use", "xlink:href"),
    ("iframe", "src"),
    ("source", "src"),
    ("source", "srcset"),
    ("object", "data"),
    ("embed", "src"),
    ("video", "src"),
    ("audio", "src"),
}


def need_the_site() -> None:
    if not DOCS.exists():
        lacking("docs/ is not beside the tests")
    for tool in TOOLS:
        need(tool)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_the_site()
    folder = tmp_path_factory.mktemp("site")
    # The command that readers are told to run.
    command = re.search(
        r"^python -m sphinx (-W .*) docs docs/_build/html$",
        (DOCS / "building.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert command is not None
    options = [*command[1].split(), "-d", str(folder / "doctrees")]
    # What Sphinx's extensions will have to change is no fault of the pages.
    later = ("-W", "ignore::PendingDeprecationWarning")
    said = run_python(*later, "-m", "sphinx", *options, str(DOCS), str(folder / "html"))
    assert "WARNING" not in said
    return folder / "html"


@pytest.fixture(scope="module")
def drawings() -> ModuleType:
    need_the_site()
    spec = importlib.util.spec_from_file_location("site_figures", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inventory(site: Path) -> set[str]:
    """List the names of Python objects that the site says it documents."""
    content = (site / "objects.inv").read_bytes()
    # Four lines of text, then compressed lines of: name, domain:role, priority, place, title.
    lines = zlib.decompress(content.split(b"\n", 4)[4]).decode().splitlines()
    entries = [line.split(" ", 2) for line in lines]
    return {name for name, role, _ in entries if role.startswith("py:")}


def test_every_page_is_built(site: Path) -> None:
    assert len(PAGES) > 10
    for page in PAGES:
        assert (site / page.removeprefix("docs/")).with_suffix(".html").exists(), page


def test_every_public_name_is_documented(site: Path) -> None:
    public = [f"draftverify.{name}" for name in draftverify.__all__]
    public += [f"draftverify.testing.{name}" for name in testing.__all__]
    public += [f"{function.__module__}.{function.__name__}" for function in ADAPTERS]
    public += [module.__name__ for module in (draftverify, testing, *MODULES)]
    assert len(ADAPTERS) > 5
    assert set(public) - inventory(site) == set()


def letters(text: str) -> str:
    """Leave out what Sphinx may set otherwise: quotes, marks, breaks of lines."""
    return re.sub(r"\W+", "", text)


def test_docstrings_are_there_in_full(site: Path) -> None:
    for page, functions in (
        ("draftverify", [getattr(draftverify, name) for name in draftverify.__all__]),
        ("testing", [getattr(testing, name) for name in testing.__all__]),
        ("adapters", ADAPTERS),
    ):
        text = (site / "api" / f"{page}.html").read_text(encoding="utf-8")
        shown = letters(re.sub(r"<[^>]*>", "", text))
        for function in filter(inspect.isroutine, functions):
            first = (inspect.getdoc(function) or "").partition("\n")[0]
            assert letters(first) in shown, function


class Fetched(HTMLParser):
    """Collects the addresses of what a browser fetches for a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.styles = ""
        self._style = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        given = dict(attrs)
        self.styles += given.get("style") or ""
        # A link to the page's place in the site, or to the next one, fetches nothing.
        if tag == "link" and given.get("rel") in {"canonical", "next", "prev", "index", "search"}:
            return
        self.found |= {value or "" for name, value in attrs if (tag, name) in FETCHING}

    def handle_data(self, data: str) -> None:
        if self._style:
            self.styles += data


def from_afar(address: str) -> bool:
    return re.match(r"(?i)([a-z]+:)?//|(?!data:)[a-z]+:", address.strip()) is not None


def addresses_in(styles: str) -> set[str]:
    return set(re.findall(r"(?:url\(|@import\s+(?!url))\s*[\"']?([^\"')\s;]+)", styles))


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    fetched = {address for page in pages for address in Fetched(page).found}
    styled = {address for page in pages for address in addresses_in(Fetched(page).styles)}
    for style in site.rglob("*.css"):
        styled |= addresses_in(style.read_text(encoding="utf-8"))
    assert any("furo.css" in address for address in fetched), "the pages have no style"
    assert {address for address in fetched | styled if from_afar(address)} == set()
    for page in pages:
        for address in Fetched(page).found:
            path = address.partition("?")[0].partition("#")[0]
            assert not path or (page.parent / path).exists() or address.startswith("data:"), address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://fonts.example/a.woff", True),
        ("//cdn.example/a.js", True),
        ("HTTP://cdn.example/a.js", True),
        ("_static/furo.css?digest=1", False),
        ("#", False),
        ("data:image/svg+xml;utf8,<svg/>", False),
    ],
)
def test_addresses_of_elsewhere_are_told_apart(address: str, expected: bool) -> None:
    assert from_afar(address) is expected


def test_addresses_in_styles_are_found() -> None:
    styles = """
        @import "https://a.example/1.css"; @import url('https://a.example/2.css');
        p { background: url(https://a.example/3.png) } @import url(https://a.example/4.css);
    """
    found = addresses_in(styles)
    assert found == {f"https://a.example/{each}" for each in ("1.css", "2.css", "3.png", "4.css")}


def test_figures_are_in_the_pages_with_words_for_them(site: Path, drawings: Any) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in site.glob("*.html"))
    described = re.findall(r'<svg role="img" aria-label="([^"]*)"', text)
    assert len(described) == text.count("<figcaption>") == len(drawings.FIGURES)
    assert all(len(words) > 80 for words in described)
    for name in drawings.FIGURES:
        drawing = (site / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert drawing == drawings.draw(name)
        assert drawing.partition("<svg")[2] in text, name


def test_no_id_is_given_twice_in_a_page(site: Path) -> None:
    for page in site.rglob("*.html"):
        ids = re.findall(r'\sid="([^"]*)"', page.read_text(encoding="utf-8"))
        assert len(ids) == len(set(ids)), (page.name, {each for each in ids if ids.count(each) > 1})


def test_figures_are_the_same_each_time_and_take_the_colour_of_the_text(drawings: Any) -> None:
    for name in drawings.FIGURES:
        drawing = drawings.draw(name)
        assert drawing == drawings.draw(name)
        assert "currentColor" in drawing
        assert not re.search(r"#0{6}|#0{3}\b|<dc:date>|\bfill: ?white", drawing), name


def test_figures_and_pages_show_the_same_toy_vocabulary(drawings: Any) -> None:
    page = (DOCS / "concepts.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    for name in ("tokens", "draft", "target"):
        line = re.search(rf"^{name} = (.*)$", page, re.MULTILINE)
        assert line is not None
        found[name] = eval(line[1], {"np": need("numpy")})  # noqa: S307 - of our own page
    assert found["tokens"] == drawings.TOKENS
    assert found["draft"].tolist() == drawings.DRAFT.tolist()
    assert found["target"].tolist() == drawings.TARGET.tolist()
