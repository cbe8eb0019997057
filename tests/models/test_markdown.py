"""Markdown: what reads well, and what must not get through."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from hub.models.markdown import MAX_RAW, render


def test_commonmark_and_tables() -> None:
    html = render("A *b* **c** `d`\n\n- e\n\n```rust\nfn <T>\n```\n\n| f | g |\n|---|--:|\n| h | i |\n")
    assert "<em>b</em> <strong>c</strong> <code>d</code>" in html
    assert "<li>e</li>" in html
    assert "<pre><code>fn &lt;T&gt;\n</code></pre>" in html
    assert "<th>g</th>" in html


def test_headings_begin_at_the_second_level_and_leave_no_gap() -> None:
    html = render("### a\n\n# b\n\n## c\n\n###### d\n\nsetext\n======\n")
    assert re.findall(r"<(h\d)>(\w+)</\1>", html) == [
        ("h2", "a"),
        ("h2", "b"),
        ("h3", "c"),
        ("h4", "d"),
        ("h2", "setext"),
    ]


def test_a_first_heading_that_repeats_the_title_is_left_out() -> None:
    assert render("# The `match`  way\n\ntext", title="The match way") == "<p>text</p>\n"
    assert render("# Other\n", title="The match way") == "<h2>Other</h2>\n"
    assert render("# \n", title="") == "<h2></h2>\n"


def test_pictures_are_described_and_not_loaded() -> None:
    assert render("![a <b>](http://there.example/x.png)") == "<p>[Picture: a &lt;b&gt;]</p>\n"
    assert render("![](x.png)") == "<p>[Picture]</p>\n"


def test_links_lead_to_the_web_and_nowhere_else() -> None:
    html = render("[web](https://there.example/?a=1&b=2) [mail](mailto:a@b.example) [page](ch02.md) [part](#top)")
    assert re.findall(r'href="([^"]*)"', html) == ["https://there.example/?a=1&amp;b=2", "mailto:a@b.example"]
    assert html.count("nofollow") == 4


@pytest.mark.parametrize(
    "evil",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<p style='color:red' onclick=alert(1) hx-get=/sign-out data-x=1 id=main class=evil>p</p>",
        "<form action=/sign-out method=post><button>go</button></form>",
        "<a href='javascript:alert(1)'>x</a> [x](javascript:alert(1)) [x](data:text/html,x) [x](vbscript:x)",
        "<a href='JaVaScRiPt:alert(1)'>x</a> <a href='java\tscript:alert(1)'>x</a> <a href='//there.example'>x</a>",
        "<svg><script>alert(1)</script></svg> <math><mi xlink:href='javascript:alert(1)'>x</mi></math>",
        "<iframe src=//there.example></iframe><object data=x></object><embed src=x><base href=//x><meta http-equiv=x>",
        "<style>*{display:none}</style><link rel=stylesheet href=x><h1 id=main>x</h1><input autofocus>",
        "<!-- <script>alert(1)</script> --><![CDATA[<script>]]><?php echo 1 ?>",
        '```"><script>alert(1)</script>\nx\n```',
        '![x" onerror="alert(1)](x) [x](https://x.example "t\\" onmouseover=alert(1)")',
    ],
)
def test_nothing_gets_through_that_runs_styles_loads_or_posts(evil: str) -> None:
    html = render(f"{evil}\n\nkept")
    tags = re.findall(r"<[^>]*>", html)
    assert "kept" in html
    assert not re.search(r"<(script|img|form|button|svg|math|iframe|object|embed|base|meta|style|link|input|h1)", html)
    assert not any(re.search(r"\s(on\w+|style|hx-\w+|data-\w+|id|class|src)=", tag) for tag in tags)
    for address in re.findall(r'href="([^"]*)"', html):
        assert re.match("(https?|mailto):", address)


@pytest.mark.parametrize(
    "deep",
    [">" * 50_000, "- " * 50_000, "[" * 50_000, "*a_" * 20_000, "<div>" * 200_000, "<b>" * 100_000, "`a" * 50_000],
    ids=["quotes", "lists", "brackets", "emphasis", "blocks", "inline", "code"],
)
def test_absurd_nesting_is_shown_somehow(deep: str) -> None:
    assert isinstance(render(deep + "\n\nend"), str)


@pytest.mark.parametrize(
    "unit",
    [
        "![",
        "[",
        "[a](",
        "&",
        "a*",
        "a <?",
        "<b>",
        "- a\n",
        "# a\n",
        "a\n\n",
        "a\n",
        "> a\n\n",
        "1. 1. 1. 1. a\n",
        "[a]\n\n",
    ],
)
def test_what_would_keep_a_parser_busy_is_shown_as_it_was_written(unit: str) -> None:
    body = unit * (1_000_000 // len(unit))
    assert render(body) == Markup("<pre>{}</pre>").format(body)


def test_a_table_without_end_is_shown_as_it_was_written() -> None:
    for body in (
        "|a|b|\n|-|-|\n" + "|c|d|\n" * 49_000,
        "|" + "a|" * 9_000 + "\n|" + "-|" * 9_000 + "\n" + "|\n" * 9_000,
    ):
        assert render(body) == Markup("<pre>{}</pre>").format(body)


def test_code_full_of_marks_is_shown_as_it_was_written() -> None:
    body = "```\n" + "<&>" * 100_000 + "\n```\n"
    assert render(body) == Markup("<pre>{}</pre>").format(body)


def test_a_megabyte_of_prose_is_rendered() -> None:
    words = (
        "Cells *divide* by `mitosis`, see [the **atlas**](https://there.example/?a=1&b=2); DNA <sub>2</sub> is kept."
    )
    section = f"## Cells\n\n{words}\n{words}\n{words}\n{words}\n\n- one\n- two\n\n| a | b |\n|---|---|\n| c | d |\n\n"
    html = render(section * (200_000 // len(section)) + "Plain words of a long book, line after line.\n" * 17_000)
    assert html.startswith("<h2>Cells</h2>")
    assert html.endswith("line after line.</p>\n")


def test_unclosed_tags_do_not_come_back_in_every_paragraph_with_each_set_of_attributes() -> None:
    body = "".join(f"<b x={number}>" for number in range(200)) + "\n\n" + "a\n\n" * 1_000
    assert len(render(body)) < 100_000


@pytest.mark.parametrize(
    "tag",
    [
        "script",
        "style",
        "template",
        "title",
        "textarea",
        "noscript",
        "iframe",
        "xmp",
        "plaintext",
        "noembed",
        "noframes",
    ]
    + [
        "math><mi",
        "svg><desc",
        "select",
        "frameset",
        "object",
        "head",
        "Listing number='1'",
        "?php ",
        "![CDATA[",
        "!--",
    ]
    + ['p title="', "p x='", "a href", "!DOCTYPE", "/script", "!-", "b <i"],
)
def test_nothing_of_a_page_is_hidden_behind_a_tag(tag: str) -> None:
    for body in (
        f"<{tag}>\nbehind\n\n**end**",
        f"before <{tag}>behind\n\n**end**",
        f"<div>\n<{tag}\nbehind\n\n**end**",
    ):
        html = render(body)
        shown = unescape(re.sub("<[^>]*>", "", html))
        assert "behind" in shown
        assert "end" in shown


def test_tags_outside_the_list_are_text_and_groups_leave_what_is_in_them() -> None:
    assert render('<script>alert("1")</script>') == '&lt;script&gt;alert("1")&lt;/script&gt;'
    assert render("a <blink>b</blink>") == "<p>a &lt;blink&gt;b&lt;/blink&gt;</p>\n"
    assert render('<div class="x">\n\n*a* <span id=b>c</span>\n\n</div>') == "\n<p><em>a</em> c</p>\n"
    assert render('<ol start="3"><li>a</ol>') == '<ol start="3"><li>a</li></ol>'


def test_comments_are_left_out_and_half_a_comment_is_text() -> None:
    assert render("a<!-- b -->c") == "<p>ac</p>\n"
    assert render("<!-- a\n\n<script> -->b<!-- c") == "b&lt;!-- c"
    assert "&lt;script&gt;" in render("<p><scr<!-- -->ipt></p>")


def test_raw_html_beyond_reason_is_shown_as_text() -> None:
    assert "&lt;div&gt;" in render("<div>" * (MAX_RAW + 1))


@given(st.text())
def test_any_text_can_be_shown(body: str) -> None:
    assert "<script" not in render(body)


def test_the_pages_of_real_courses_can_be_shown(test_data: Path) -> None:
    pages = sorted((test_data / "courses").glob("*/*.md"))
    assert pages
    for page in pages:
        html = render(page.read_text())
        assert not re.search(r"<(script|img|h1)|<[^>]*\sstyle=", html), page.name
