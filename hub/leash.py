"""A child process that ends when its parent does, even when the parent is killed.

``python -m hub.leash PARENT MODULE ARGUMENTS…`` runs a module as ``python -m`` would, tied to the process PARENT.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


def tie(parent: int, ending: signal.Signals = signal.SIGTERM) -> None:
    """Have this process sent `ending` as soon as its parent, the process `parent`, is gone.

    On Linux the kernel does it. Elsewhere a thread looks every half second, so it works only in a Python process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(ending), 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent, ending), daemon=True).start()
    # The parent may have died before the kernel was asked; then nobody would send the signal.
    if os.getppid() != parent:
        os.kill(os.getpid(), ending)


def _watch(parent: int, ending: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), ending)


def main() -> None:
    """Run ``sys.argv[2]`` as the main module, with the arguments after it."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    tie(parent)
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
