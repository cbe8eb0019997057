"""A process on the leash ends with its parent, by the kernel's help or without."""

import sys

import pytest

from tests.processes import Program

# The parent starts the child, tells its number, and sleeps until it is killed; the child says when it is told to end.
PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1], str(os.getpid())])
signal.pause()
"""
CHILD = """
import os, signal, sys
sys.platform = sys.argv[1]
def end(*_):
    print("told to end", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
from hub.leash import tie
tie(int(sys.argv[2]))
print("on the leash", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_killed_parent_takes_its_child_along(platform: str) -> None:
    if platform == "linux" and sys.platform != "linux":
        pytest.skip("needs Linux")
    parent = Program([sys.executable, "-c", PARENT, platform, CHILD], {})
    try:
        parent.await_line("on the leash")
        parent.kill()
        parent.await_line("told to end")
    finally:
        parent.close()


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_parent_that_was_gone_before_is_noticed(platform: str) -> None:
    if platform == "linux" and sys.platform != "linux":
        pytest.skip("needs Linux")
    # No process has this one as its parent: it is the number of none.
    child = Program([sys.executable, "-c", CHILD, platform, "0"], {})
    try:
        child.await_line("told to end")
        assert child.wait() == 0
    finally:
        child.close()
