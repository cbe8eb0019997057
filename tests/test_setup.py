"""The set-up: locks without addresses, and one sentence for each thing that is missing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.processes import ROOT

LOCKS = ["requirements.lock", "requirements-dev.lock"]


def pins(lock: str) -> dict[str, str]:
    """Each locked package with everything its entry says."""
    entries = re.findall(r"^([a-z0-9][a-z0-9._-]*)==((?:.*\\\n)*.*)$", (ROOT / lock).read_text(), re.MULTILINE)
    return dict(entries)


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """tools/setup.py as a module, working in a folder of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "setup", raising=False)
    import setup  # type: ignore[import-not-found]

    root = tmp_path / "a copy"
    root.mkdir()
    for name in [*LOCKS, "pyproject.toml"]:
        shutil.copy(ROOT / name, root)
    monkeypatch.setattr(setup, "ROOT", str(root))
    monkeypatch.setattr(setup, "VENV", str(root / ".venv"))
    monkeypatch.setattr(setup, "PYTHON", str(root / ".venv" / "bin" / "python"))
    return setup


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_a_hash(lock: str) -> None:
    assert pins(lock)
    assert [name for name, entry in pins(lock).items() if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address(lock: str) -> None:
    assert re.findall(r"://|--index|--find-links|--extra-index|@ ", (ROOT / lock).read_text()) == []


def test_tests_run_on_the_packages_that_hub_runs_on() -> None:
    runtime, dev = (pins(lock) for lock in LOCKS)
    assert {name: dev.get(name) for name in runtime} == runtime


@pytest.mark.parametrize("source", ["requirements.in", "requirements-dev.in"])
def test_every_wanted_package_is_locked_and_explained(source: str) -> None:
    wanted = re.findall(r"^([a-z][a-z0-9-]*)", (ROOT / source).read_text(), re.MULTILINE)
    locked = pins(source.replace(".in", ".lock"))
    explained = (ROOT / "docs" / "decisions.md").read_text().lower()
    assert [name for name in wanted if name not in locked] == []
    assert [name for name in wanted if f"| {name} " not in explained] == []


def test_an_old_python_is_told_which_one_to_install(setup: ModuleType) -> None:
    with pytest.raises(setup.Refusal, match=r"needs Python 3.11 or newer and .* is 3.9: install a newer one"):
        setup.check_python((3, 9, 2))


def test_a_full_disk_is_told_how_much_room_is_needed(setup: ModuleType) -> None:
    with pytest.raises(setup.Refusal, match=r"needs 300 MB and the disk of .* has 5 MB free: make room"):
        setup.check_disk(5_000_000, 300)


def test_a_python_without_venv_is_told_the_package_to_install(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    assert setup.main(["runtime"]) == 1
    said = capsys.readouterr().err
    assert "apt-get install python3-venv" in said
    assert said.count("\n") == 1


def test_a_set_up_that_matches_the_lock_is_not_repeated(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(setup, "install", done.append)
    assert setup.main(["dev"]) == 0
    assert setup.main(["dev"]) == 0
    assert setup.main(["runtime"]) == 0
    assert done == ["dev"]
    with open(os.path.join(setup.ROOT, "requirements-dev.lock"), "a") as lock:
        lock.write("# another state\n")
    assert setup.main(["dev"]) == 0
    assert done == ["dev", "dev"]


def test_the_packages_for_running_do_not_count_as_those_for_testing(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    monkeypatch.setattr(setup, "install", done.append)
    setup.main(["runtime"])
    setup.main(["dev"])
    assert done == ["runtime", "dev"]


def test_a_folder_that_was_moved_gets_its_environment_anew(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(setup, "install", done.append)
    setup.main(["runtime"])
    Path(setup.VENV, "made-at").write_text("/elsewhere")
    monkeypatch.setattr(setup, "ROOT", f"{setup.ROOT}/.")
    setup.main(["runtime"])
    assert done == ["runtime", "runtime"]


def test_make_says_what_to_do_without_python() -> None:
    done = subprocess.run(
        ["make", "PYTHON=no-such-python", "run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "hub: There is no no-such-python here: install Python 3.11 or newer" in done.stderr
