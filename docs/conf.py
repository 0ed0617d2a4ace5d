"""The documentation site: how Sphinx builds it.

Nothing is fetched from elsewhere: no font, no script, no list of other projects' names. Figures are
drawn by `figures.py` while the site is built, and put into the pages as they are, so that their
text and lines have the colour of the page's text, in the light theme and in the dark one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import draftverify

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "draftverify"
author = "the authors of draftverify"
release = version = draftverify.__version__
html_title = f"draftverify {release}"

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
templates_path: list[str] = []

# A name in single backticks is a name of this library, and a wrong one is a warning.
default_role = "py:obj"
nitpicky = True
nitpick_ignore = [
    ("py:obj", name)
    for name in (  # of other projects, whose lists of names would have to be fetched
        "functools.partial",
        "operator.ge",
        "operator.gt",
        "operator.le",
        "operator.lt",
        "torch.Generator",
        "torch.from_numpy",
    )
]

autodoc_typehints = "none"  # docstrings give shapes and dtypes, which annotations cannot
autodoc_preserve_defaults = True  # as they are written, not as they are shown
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0068a3", "color-brand-content": "#0068a3"},
    "dark_css_variables": {"color-brand-primary": "#63b8ec", "color-brand-content": "#63b8ec"},
}


class Drawing(SphinxDirective):
    """``{drawing} name``: a figure of `figures.py`, its caption below."""

    required_arguments = 1
    option_spec = {"alt": lambda text: text}  # noqa: RUF012 - as docutils has it
    has_content = True
    folder = Path()

    def run(self) -> list[nodes.Node]:
        """Put the drawing into the page."""
        name = self.arguments[0]
        self.env.note_dependency(str(HERE / "figures.py"))
        drawing = (self.folder / f"{name}.svg").read_text(encoding="utf-8")
        drawing = drawing[drawing.index("<svg") :]  # without the prologue of a file
        alt = nodes.unescape(self.options["alt"]).replace("&", "&amp;").replace('"', "&quot;")
        drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)
        figure = nodes.figure(classes=["drawing"])
        figure += nodes.raw("", drawing, format="html")
        caption = nodes.caption()
        for child in self.parse_content_to_nodes():
            caption += child.children
        figure += caption
        return [figure]


def resolve(app: Sphinx, env: Any, node: Any, content: Any) -> Any:
    """Find the `adapters.vllm` of a docstring: names may begin below the package."""
    if node.get("refdomain") != "py" or not node["reftarget"].startswith("adapters."):
        return None
    target = f"draftverify.{node['reftarget']}"
    return env.domains["py"].resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], target, node, content
    )


def draw(app: Sphinx) -> None:
    """Draw all figures before the pages are read."""
    import figures  # noqa: PLC0415 - matplotlib is slow to import

    Drawing.folder = Path(app.outdir, "figures")
    figures.draw_all(Drawing.folder)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add what is this site's own."""
    app.add_directive("drawing", Drawing)
    app.connect("builder-inited", draw)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
