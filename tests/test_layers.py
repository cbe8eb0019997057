"""The contracts on who may import whom hold, and each of them can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT, "--no-cache"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "hub", tmp_path / "hub", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "breach", "contract"),
    [
        ("queue", "import hub.jobs", "Imports run one way BROKEN"),
        ("queue", "import hub.models", "Imports run one way BROKEN"),
        ("models", "import hub.queue", "Imports run one way BROKEN"),
        ("jobs", "import hub.web", "Imports run one way BROKEN"),
        ("jobs", "import flask", "Only hub.web knows Flask BROKEN"),
        ("queue", "import werkzeug", "Only hub.web knows Flask BROKEN"),
    ],
)
def test_a_breach_is_found(copy: Path, module: str, breach: str, contract: str) -> None:
    (copy / "hub" / module / "planted.py").write_text(f"{breach}\n")
    done = lint(copy)
    assert done.returncode == 1
    assert contract in done.stdout


def test_a_module_without_a_place_in_the_layers_is_found(copy: Path) -> None:
    (copy / "hub" / "planted.py").write_text("")
    done = lint(copy)
    assert done.returncode == 1
    assert "planted" in done.stdout
