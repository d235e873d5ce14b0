"""Rendering of the site: formulas as MathML, which needs no script, and Sphinx roles of docstrings as Markdown."""

from __future__ import annotations

import html
import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas of a page; MkDocs calls this with its HTML."""
    content = DISPLAY.sub(lambda match: _mathml(match[1], "block"), content)
    return INLINE.sub(lambda match: _mathml(match[1], "inline"), content)


def _mathml(latex: str, display: str) -> str:
    latex = html.unescape(latex).replace(r"\arg\min", r"\operatorname*{argmin}")
    latex = re.sub(r"\\[bB]ig(?=[(\[]|\\\{)", r"\\left", latex)  # as high as their contents
    latex = re.sub(r"\\[bB]ig(?=[)\]]|\\\})", r"\\right", latex)
    return convert(latex, display=display)


class SphinxRoles(griffe.Extension):
    """Convert docstrings to Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Convert the Sphinx roles of a docstring.

    >>> as_markdown("see :class:`~borat.BORAT`, of size :math:`N`")
    'see `BORAT`, of size $N$'
    """
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)\.\. math::\n((?:\1 +.*\n?)+)", _display, text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    return re.sub(r":(?:class|meth|func|mod|data|attr):`~?([^`]*)`", lambda m: f"`{m[1].removeprefix('borat.')}`", text)


def _display(match: re.Match[str]) -> str:
    formula = textwrap.indent(textwrap.dedent(match[2]).strip(), match[1])
    return f"{match[1]}$$\n{formula}\n{match[1]}$$\n"
