"""A page's Markdown as HTML that is safe to show: CommonMark and tables, then an allow-list.

What people write may come from anywhere, so nothing passes that runs, styles, loads or posts. Pictures are not loaded:
their description stands in their place. Links within a course have no address in Hub and are shown as text.

Nothing of a page's text is hidden, whatever stands in it: raw tags that are not on the list are text themselves, since
an HTML parser drops what is in some of them and swallows what follows others. Only comments are left out.

The work is bounded: what would keep a parser busy for seconds is shown as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
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
# Of these only what is in them is shown: they group, and the page has no use for it.
GROUPING_TAGS = {"div", "span", "section", "article", "figure", "figcaption", "center", "font", "small", "u", "h1"}
TAGS = TEXT_TAGS | BLOCK_TAGS | TABLE_TAGS | HEADING_TAGS
ATTRIBUTES: dict[str, set[str]] = {"a": {"href"}, "ol": {"start"}, "*": set()}
SCHEMES = {"http", "https", "mailto"}
# Pieces of raw HTML in one page. The HTML parser's time grows with the square of how deep they nest: 0.05 s for this
# many, 20 s for twenty times as many.
MAX_RAW = 5_000
# What a page of 1 MB may have: about twice as much as the densest megabyte of real courses, and under a second's work.
MAX_LINES = 50_000
MAX_TOKENS = 50_000
MAX_MARKS = 50_000
# In one text, each opening bracket may make the parser look at all marks behind it, and each "<" at all characters: so
# much looking in a whole page.
MAX_BRACKET_STEPS = 2_000_000
MAX_ANGLE_STEPS = 20_000_000
# Escaped "&", "<" and ">", with the square of whose number the HTML parser's time grows: 0.3 s for so many.
MAX_ENTITIES = 75_000


def render(body: str, title: str = "") -> Markup:
    """The HTML of a body. A first heading that only repeats `title` is left out; headings begin at the second level.

    Never fails: what is too much or too deeply nested for a parser is shown as it was written.
    """
    try:
        html = _to_html(body, title)
    except (_Excess, RecursionError):
        return Markup("<pre>{}</pre>").format(body)
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


class _Excess(Exception):
    """A page is more than the parsers should be bothered with."""


def _to_html(body: str, title: str) -> str:
    if body.count("\n") > MAX_LINES:
        raise _Excess
    environment: dict[str, Any] = {}
    tokens = _MARKDOWN.parse(body, environment)
    if _count_raw(tokens) > MAX_RAW:
        raise _Excess
    tokens = _without_title(tokens, title)
    _nest_headings(tokens)
    html: str = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, environment)
    if html.count("&") - html.count("&quot;") > MAX_ENTITIES:
        raise _Excess
    return html


def _bound_blocks(state: StateBlock, _start: int, _end: int, _silent: bool) -> bool:
    """Matches nothing; as the first rule it is asked at each line and each level, and ends what grows too long."""
    if len(state.tokens) > MAX_TOKENS:
        raise _Excess
    return False


def _bound_text(state: StateCore) -> None:
    """Count, between blocks and texts, what the texts will cost."""
    marks = brackets = angles = 0
    for token in state.tokens:
        if token.type == "inline":
            found = len(token.content) - len(token.content.translate(_WITHOUT_MARKS))
            marks += found
            brackets += token.content.count("[") * found
            angles += token.content.count("<") * len(token.content)
    if marks > MAX_MARKS or brackets > MAX_BRACKET_STEPS or angles > MAX_ANGLE_STEPS:
        raise _Excess


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


def _raw(_renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _environment: Any) -> str:
    """Raw HTML with the tags of the list, as bare as they are shown; each other "<" is text."""
    raw = tokens[index].content
    # Behind the last end of a comment none begins, and there the search for an end would only cost time.
    end = raw.rfind("-->") + 1
    return _ANGLE.sub(_kept_tag, _COMMENT.sub("", raw[: end + 2]) + raw[end + 2 :] if end else raw)


def _kept_tag(found: re.Match[str]) -> str:
    name = (found["name"] or "").lower()
    if name in GROUPING_TAGS:
        return ""
    if name not in TAGS:
        return "&lt;" + found[0][1:]
    # Unclosed tags come back in each paragraph after them, once for each set of attributes they were written with.
    return found[0] if name in ATTRIBUTES else f"<{found['slash']}{name}>"


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.block.ruler.before("table", "bound", _bound_blocks, {"alt": ["paragraph", "blockquote", "list"]})
    parser.core.ruler.after("block", "bound", _bound_text)
    parser.add_render_rule("image", _image)
    parser.add_render_rule("html_block", _raw)
    parser.add_render_rule("html_inline", _raw)
    return parser


# The characters at which the parser of texts stops to look.
_WITHOUT_MARKS = {ord(mark): None for mark in "\n!&*<>[\\]_`"}
_COMMENT = re.compile("<!--.*?-->", re.DOTALL)
_ATTRIBUTE = r"""\s+[a-zA-Z_:][\w:.-]*(?:\s*=\s*(?:[^\s"'=<>`]+|'[^']*'|"[^"]*"))?"""
# A "<", with the rest of the tag if it is a whole one: half a tag would take the text up to the next ">" with it.
_ANGLE = re.compile(rf"<(?:(?P<slash>/?)(?P<name>[a-zA-Z][a-zA-Z0-9]*)(?:{_ATTRIBUTE})*\s*/?>)?")
_MARKDOWN = _parser()
