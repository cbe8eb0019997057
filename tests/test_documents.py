"""What the documents say of tests is so."""

from __future__ import annotations

import ast
import re

from tests.processes import ROOT

FAULTS = ROOT / "docs" / "faults.md"
ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def names_in(path: str) -> set[str]:
    """The names of a file's tests; without a folder, one of tests/queue."""
    file = ROOT / (path if "/" in path else f"tests/queue/{path}")
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_fault_names_tests_that_exist_or_says_why_it_cannot_occur() -> None:
    rows = ROW.findall(FAULTS.read_text())
    assert [int(number) for number, _ in rows] == list(range(1, 58))
    for number, kept_away_by in rows:
        named = TEST.findall(kept_away_by)
        assert named or re.match(r"cannot happen: \w", kept_away_by), number
        for path, name in named:
            assert name in names_in(path), (number, path, name)
