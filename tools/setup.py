"""Make .venv ready to run Hub, or to test it: `python3 tools/setup.py runtime|dev`.

Only the standard library, and no syntax newer than Python 3.6, so that an old interpreter can still say what is
missing. A second call with the same lock does nothing.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
LOCKS = {"runtime": "requirements.lock", "dev": "requirements-dev.lock"}
OLDEST = (3, 11)
MEGABYTES = {"runtime": 300, "dev": 700}


class Refusal(Exception):
    """What is missing, as one sentence that says what to do."""


def main(arguments):
    """Set up for `runtime` or `dev`; returns the exit code."""
    if len(arguments) != 1 or arguments[0] not in LOCKS:
        print("usage: python3 tools/setup.py runtime|dev", file=sys.stderr)
        return 2
    try:
        set_up(arguments[0])
    except Refusal as refusal:
        print("hub: " + str(refusal), file=sys.stderr)
        return 1
    return 0


def set_up(purpose):
    """Bring .venv to the state of the lock for this purpose, one process at a time."""
    check_python(sys.version_info)
    with open(os.path.join(ROOT, LOCKS[purpose]), "rb") as lock_file:
        # Two `make` at once would install into one folder; the second waits and then finds all done.
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        if is_ready(purpose):
            return
        check_disk(shutil.disk_usage(ROOT).free, MEGABYTES[purpose])
        make_venv()
        install(purpose)
        with open(stamp(purpose), "w") as out:
            out.write(fingerprint(purpose))


def check_python(version):
    """Refuse an interpreter that is too old for Hub."""
    if tuple(version[:2]) < OLDEST:
        raise Refusal(
            f"Hub needs Python {OLDEST[0]}.{OLDEST[1]} or newer and {sys.executable} is {version[0]}.{version[1]}:"
            " install a newer one, or name it with `make PYTHON=python3.12 ...`."
        )


def check_disk(free, megabytes):
    """Refuse to start an installation that the disk cannot hold. `free` is in bytes."""
    if free < megabytes * 1000 * 1000:
        raise Refusal(
            f"Installing Hub's packages needs {megabytes} MB and the disk of {ROOT} has {free // 1000000} MB free:"
            " make room there."
        )


def is_ready(purpose):
    """Whether .venv already holds what this purpose needs; the packages for tests include those for running."""
    return any(read(stamp(held)) == fingerprint(held) for held in {purpose, "dev"}) and os.path.exists(PYTHON)


def fingerprint(purpose):
    """A digest of all that .venv was made from: the lock, the project's own entry, where it stands."""
    digest = hashlib.sha256(ROOT.encode())
    for name in (LOCKS[purpose], "pyproject.toml"):
        with open(os.path.join(ROOT, name), "rb") as source:
            digest.update(source.read())
    return digest.hexdigest()


def stamp(purpose):
    """The file whose content tells what was installed for this purpose."""
    return os.path.join(VENV, "installed-" + purpose)


def read(path):
    """The text of a file, or None if there is none."""
    try:
        with open(path) as source:
            return source.read()
    except OSError:
        return None


def make_venv():
    """Make .venv, anew if its interpreter is gone or the folder was moved here from elsewhere."""
    if read(os.path.join(VENV, "made-at")) == ROOT and runs([PYTHON, "-m", "pip", "--version"]):
        return
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise Refusal(
            "This Python has no venv module: install it (on Debian and Ubuntu `apt-get install python3-venv`)"
            " and start again."
        )
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], **quiet())
    if done.returncode:
        raise Refusal(f"The folder .venv could not be made: {last_line(done.stdout)}")
    with open(os.path.join(VENV, "made-at"), "w") as out:
        out.write(ROOT)


def install(purpose):
    """Install the locked packages, each checked against its hash, then Hub itself as a link to this folder."""
    print(f"hub: installing the packages of {LOCKS[purpose]} (once, about a minute)", file=sys.stderr)
    pip("--require-hashes", "-r", os.path.join(ROOT, LOCKS[purpose]))
    pip("--no-deps", "--no-build-isolation", "--no-index", "-e", ROOT)


def pip(*arguments):
    """Run one `pip install`, and turn its failure into a sentence."""
    command = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-q"]
    done = subprocess.run(command + list(arguments), **quiet())
    if done.returncode:
        if "No space left on device" in done.stdout:
            raise Refusal(f"The disk of {ROOT} is full: make room there and start again.")
        sys.stderr.write(done.stdout)
        raise Refusal(
            f"The packages could not be installed, see above; is the package index in reach? ({last_line(done.stdout)})"
        )


def runs(command):
    """Whether a command can be started and succeeds."""
    try:
        return subprocess.run(command, **quiet()).returncode == 0
    except OSError:
        return False


def quiet():
    """How the commands here are run: output kept, no input."""
    return {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "universal_newlines": True,
    }


def last_line(text):
    """The last line with something on it, where programs put their reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
