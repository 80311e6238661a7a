"""The documentation site: `make docs`. What needs no words here is in docs/extensions."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "extensions"), str(DOCS.parent / "tools")]

project = "torchvq"
author = "torchvq authors"
project_copyright = "torchvq authors, MIT licence"
release = version = (DOCS.parent / "VERSION").read_text().strip()

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
    "cpp_headers",
    "docstrings",
    "outside_files",
    "pictures",
]
exclude_patterns = ["extensions", "_build"]
html_theme = "furo"
html_title = f"torchvq {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# Headings are anchors as they are where Markdown is shown by itself.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
suppress_warnings = ["myst.xref_ambiguous"]
# In docstrings `name` is code.
default_role = "literal"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {
    "members": True,
    "inherited-members": "Module",
    "exclude-members": "extra_repr",
}
autodoc_preserve_defaults = True
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
cpp_maximum_signature_line_length = 88

bibtex_bibfiles = ["papers.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"
