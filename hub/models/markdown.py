"""A page's Markdown as HTML that is safe to show: CommonMark and tables, then an allow-list.

What people write may come from anywhere, so nothing passes that runs, styles, loads or posts. Pictures are not loaded:
their description stands in their place. Links within a course have no address in Hub and are shown as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup, escape

from hub import words

TEXT_TAGS = {
    "a",
    "abbr",
    "b",
    "br",
    "code",
    "del",
    "em",
    "i",
    "ins",
    "kbd",
    "mark",
    "s",
    "samp",
    "strong",
    "sub",
    "sup",
}
BLOCK_TAGS = {"p", "hr", "blockquote", "pre", "ul", "ol", "li", "dl", "dt", "dd", "details", "summary"}
TABLE_TAGS = {"table", "thead", "tbody", "tr", "th", "td"}
HEADING_TAGS = {"h2", "h3", "h4", "h5", "h6"}
TAGS = TEXT_TAGS | BLOCK_TAGS | TABLE_TAGS | HEADING_TAGS
ATTRIBUTES: dict[str, set[str]] = {"a": {"href"}, "ol": {"start"}, "*": set()}
SCHEMES = {"http", "https", "mailto"}
# Pieces of raw HTML in one page. The HTML parser's time grows with the square of how deep they nest: 0.05 s for this
# many, 20 s for twenty times as many.
MAX_RAW = 5_000


def render(body: str, title: str = "") -> Markup:
    """The HTML of a body. A first heading that only repeats `title` is left out; headings begin at the second level.

    Never fails: what is too deeply nested for a parser is shown as it was written.
    """
    try:
        html = _to_html(body, title)
    except RecursionError:
        html = f"<pre>{escape(body)}</pre>"
    return Markup(
        nh3.clean(
            html,
            tags=TAGS,
            attributes=ATTRIBUTES,
            url_schemes=SCHEMES,
            url_relative="deny",
            link_rel="noopener noreferrer nofollow",
        )
    )


def _to_html(body: str, title: str) -> str:
    environment: dict[str, Any] = {}
    parser = _WITH_HTML
    tokens = parser.parse(body, environment)
    if _count_raw(tokens) > MAX_RAW:
        environment, parser = {}, _WITHOUT_HTML
        tokens = parser.parse(body, environment)
    tokens = _without_title(tokens, title)
    _nest_headings(tokens)
    html: str = parser.renderer.render(tokens, parser.options, environment)
    return html


def _count_raw(tokens: Sequence[Token]) -> int:
    return sum(
        part.content.count("<")
        for token in tokens
        for part in (token, *(token.children or ()))
        if part.type in ("html_block", "html_inline")
    )


def _without_title(tokens: list[Token], title: str) -> list[Token]:
    if len(tokens) < 3 or tokens[0].type != "heading_open":
        return tokens
    shown = "".join(part.content for part in tokens[1].children or () if part.type in ("text", "code_inline"))
    return tokens[3:] if title and shown.split() == title.split() else tokens


def _nest_headings(tokens: Sequence[Token]) -> None:
    """Give headings the levels from 2 on without a gap, whatever levels the writer chose: the page has the first."""
    open_levels: list[int] = []
    tag = "h2"
    for token in tokens:
        if token.type == "heading_open":
            level = int(token.tag[1])
            while open_levels and open_levels[-1] >= level:
                open_levels.pop()
            open_levels.append(level)
            tag = f"h{min(len(open_levels) + 1, 6)}"
        if token.type in ("heading_open", "heading_close"):
            token.tag = tag


def _image(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, environment: Any) -> str:
    description = renderer.renderInlineAsText(tokens[index].children, options, environment).strip()
    return str(
        escape(words.say("page.image", description=description) if description else words.say("page.image_bare"))
    )


def _parser(html: bool) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": html}).enable("table")
    parser.add_render_rule("image", _image)
    return parser


_WITH_HTML = _parser(html=True)
_WITHOUT_HTML = _parser(html=False)
