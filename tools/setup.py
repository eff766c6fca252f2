"""Make .venv: every version pinned, a whole environment or none, and nothing to do the second time.

Run by `make setup` and by every target that needs the environment. Two modes:
  own     torch and triton are installed at the pinned versions. Without a GPU a CPU build of torch is looked for.
  system  the interpreter's own torch and triton (a ROCm or CUDA image) are seen from .venv and never replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
STAMP = "evalkit-setup.json"
TORCH_FAMILY = ("torch", "triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "torchvision")
TROUBLE = (  # what pip's log says -> what it means, what to do; the first that is found is told
    (r"No space left on device", "the disk is full", "free some space, then run the same command"),
    (
        r"NewConnectionError|ConnectTimeoutError|NameResolutionError|Temporary failure in name resolution|ProxyError"
        r"|Connection refused|Network is unreachable",
        "the package index cannot be reached (offline?)",
        "connect, or point pip at a mirror (pip config, PIP_INDEX_URL, PIP_FIND_LINKS), then run the same command",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "the pinned versions and what is installed here do not fit together",
        "try VENV=own; the log says which packages",
    ),
    (
        r"No matching distribution found for (\S+)",
        "no file of {0} fits this Python and machine",
        "try another Python: PYTHON=python3.11 make setup",
    ),
)


class SetupError(Exception):
    """What went wrong and what to do about it; `clean` says that no package was half unpacked by then."""

    def __init__(self, what: str, fix: str, *, clean: bool = False) -> None:
        super().__init__(what)
        self.what, self.fix, self.clean = what, fix, clean


def pins(path: Path) -> list[str]:
    """The requirement lines of a lock file, without comments."""
    return [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def normal(requirement: str) -> str:
    """The normalised project name at the start of a requirement."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", name.group()).lower() if name else ""


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def system_torch() -> dict[str, str]:
    """Torch and its kin as this interpreter has them, name -> version; empty where there is no torch."""
    if importlib.util.find_spec("torch") is None:
        return {}
    return {name: version for name in TORCH_FAMILY if (version := installed(name))}


def choose_mode(asked: str, recorded: str | None, found: dict[str, str]) -> str:
    """own or system. `auto` keeps what the environment was made with, and else takes the torch that is here."""
    if asked == "system" and "torch" not in found:
        raise SetupError(f"VENV=system, but {sys.executable} has no torch", "use VENV=own, or another PYTHON=")
    if asked != "auto":
        return asked
    if recorded == "own" or (recorded == "system" and "torch" in found):
        return recorded
    return "system" if "torch" in found else "own"


def key_of(root: Path, mode: str, found: dict[str, str]) -> str:
    """Changes whenever an environment made earlier would not be the one made now."""
    digest = hashlib.sha256()
    for path in [root / "pyproject.toml", root / "tools" / "setup.py", *sorted((root / "requirements").glob("*.txt"))]:
        digest.update(path.read_bytes() + b"\0")
    place = [str(root), platform.python_version(), platform.machine(), mode]
    kin = sorted(f"{name}={version}" for name, version in found.items()) if mode == "system" else []
    digest.update("\0".join(place + kin).encode())
    return digest.hexdigest()


def read_stamp(venv: Path) -> dict[str, str]:
    """What the environment says of itself; {} where it says nothing."""
    try:
        stamp = json.loads((venv / STAMP).read_text())
        return stamp if isinstance(stamp, dict) else {}
    except (OSError, ValueError):
        return {}


def write_stamp(venv: Path, state: str, mode: str, key: str) -> None:
    """Whole or not at all: a stamp that says `ready` is the last thing a set-up writes."""
    part = venv / f"{STAMP}.part"
    stamp = {"state": state, "mode": mode, "key": key, "python": platform.python_version()}
    part.write_text(json.dumps(stamp) + "\n")
    os.replace(part, venv / STAMP)


def is_current(venv: Path, mode: str, key: str) -> bool:
    stamp = read_stamp(venv)
    whole = stamp.get("state") == "ready" and (venv / "bin" / "python").exists() and (venv / "bin" / "evalkit").exists()
    return whole and stamp.get("mode") == mode and stamp.get("key") == key


def gpu_vendor() -> str | None:
    """nvidia, amd or None, from what the kernel shows."""
    if glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/proc/driver/nvidia/version"):
        return "nvidia"
    if os.path.exists("/dev/dxg") and shutil.which("nvidia-smi"):  # Windows' subsystem for Linux
        return "nvidia"
    return "amd" if os.path.exists("/dev/kfd") else None


def explain(log: str) -> tuple[str, str]:
    """What a failed pip run means and what to do."""
    for pattern, what, fix in TROUBLE:
        if found := re.search(pattern, log):
            return what.format(*found.groups()), fix
    errors = [line for line in log.splitlines() if re.match(r"\s*(ERROR|error)", line)]
    return (errors[-1].strip() if errors else "an install step failed"), "the log says more"


class Environment:
    """The folder .venv and what is done to it; everything that pip says goes to one log."""

    def __init__(self, root: Path) -> None:
        self.root, self.venv = root, root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.log = root / "build" / "setup.log"

    def run(self, *command: str | Path) -> str:
        """Run a command, append what it says to the log, return that."""
        with self.log.open("a+") as log:
            log.write(f"$ {' '.join(map(str, command))}\n")
            log.flush()
            start = log.tell()
            words, nothing = [str(word) for word in command], subprocess.DEVNULL
            done = subprocess.run(words, stdin=nothing, stdout=log, stderr=subprocess.STDOUT, check=False)
            log.seek(start)
            said = log.read()
        if done.returncode:
            what, fix = explain(said)
            clean = "pip" in command and "Installing collected packages" not in said
            raise SetupError(f"{what} (log: {self.log.relative_to(self.root)})", fix, clean=clean)
        return said

    def pip(self, *arguments: str | Path) -> str:
        quiet = ["--disable-pip-version-check", "--no-input", "--retries", "2"]
        return self.run(self.python, "-m", "pip", *quiet, *arguments)

    def torch_needs_cuda(self, pin: str) -> bool:
        """Whether pip, asked for this torch, would bring CUDA's libraries with it. Downloads no package."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            self.pip("install", "--quiet", "--dry-run", "--report", report, pin)
            chosen = [normal(item["metadata"]["name"]) for item in json.loads(report.read_text())["install"]]
        return any(name.startswith(("nvidia-", "cuda-")) for name in chosen)

    def torch_by_uv(self, pin: str, uv_pin: str) -> bool:
        """Install torch's CPU build with uv, which knows where PyTorch keeps it. False where that is out of reach."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                self.pip("install", "--quiet", "--target", folder, uv_pin)
                uv = Path(folder, "bin", "uv")
                self.run(uv, "pip", "install", "--python", self.python, "--torch-backend", "cpu", "--no-deps", pin)
            except SetupError:
                return False
        return True

    def install_torch(self, pin: str, uv_pin: str) -> str:
        """Install torch; returns a word on which build and why."""
        index, base = os.environ.get("TORCH_INDEX"), self.root / "requirements" / "base.txt"
        limits = ["--constraint", base]
        if index:
            where = "--find-links" if os.path.isdir(index) else "--extra-index-url"
            self.pip("install", *limits, where, index, pin)
            return "from TORCH_INDEX"
        if gpu_vendor() == "nvidia":
            self.pip("install", *limits, pin)
            return "for an NVIDIA GPU"
        if not self.torch_needs_cuda(pin):
            self.pip("install", *limits, pin)
            return "CPU build"
        if self.torch_by_uv(pin, uv_pin):
            return "CPU build, by uv"
        print("\nsetup: no CPU build of torch can be reached: taking the CUDA build, several GB that do nothing here")
        print("       to avoid it: stop, then TORCH_INDEX=<address or folder of a CPU build> make setup", flush=True)
        self.pip("install", *limits, pin)
        return "CUDA build"


@contextlib.contextmanager
def stage(text: str):
    """One line on the terminal per step, with its seconds."""
    start = time.monotonic()
    print(f"setup: {text} ...", end="", flush=True)
    said: list[str] = []
    try:
        yield said
    except BaseException:
        print(" failed", flush=True)
        raise
    print(f" {''.join(f'{word}, ' for word in said)}{time.monotonic() - start:.0f} s", flush=True)


def make_venv(env: Environment, mode: str, key: str) -> None:
    """An empty environment that already says `building`, so that a half-made one is never taken for whole."""
    stamp = read_stamp(env.venv)
    if env.venv.exists() and any(env.venv.iterdir()) and not stamp:
        raise SetupError(f"{env.venv.name}/ was not made by this project", "move it away or remove it, then try again")
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(f"Python {version} lacks its venv module", f"install python{version}-venv, or another PYTHON=")
    # The folder is emptied before the stamp goes: whatever is left after a kill still says `building`.
    env.venv.mkdir(exist_ok=True)
    write_stamp(env.venv, "building", mode, key)
    for path in env.venv.iterdir():
        if path.name != STAMP:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    see_system = ["--system-site-packages"] if mode == "system" else []
    env.run(sys.executable, "-m", "venv", *see_system, env.venv)
    if mode == "system" and sys.prefix != sys.base_prefix:  # the image's torch sits in an environment of its own
        paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        inside = env.run(env.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").splitlines()[-1]
        Path(inside, "image_site_packages.pth").write_text("".join(f"{path}\n" for path in paths))


def install(env: Environment, mode: str, found: dict[str, str]) -> None:
    """Everything into an environment that exists. Safe to repeat."""
    folder = env.root / "requirements"
    torch, triton = pins(folder / "torch.txt")
    uv_pin, node_pin = pins(folder / "tools.txt")
    lock = pins(folder / "base.txt") + pins(folder / "dev.txt")
    limits: list[str] = []
    if mode == "own":
        with stage(torch.replace("==", " ")) as said:
            if env.run(env.python, "-m", "pip", "freeze").find(f"\n{torch}") < 0:
                said.append(env.install_torch(torch, uv_pin))
    else:
        print(f"setup: torch {found['torch']} and its kin are the interpreter's own", flush=True)
        limits = [f"{name}==={version}" for name, version in found.items()]
        own = {normal(line) for line in importlib.metadata.requires("torch") or []}  # torch came with these: they stay
        lock = [line for line in lock if normal(line) not in own]
    if shutil.which("node") is None:
        lock.append(node_pin)  # pyright runs on it
    with stage(f"{len(lock)} pinned packages"), tempfile.TemporaryDirectory() as scratch:
        wanted, constraints = Path(scratch, "wanted.txt"), Path(scratch, "constraints.txt")
        wanted.write_text("\n".join(lock))
        constraints.write_text("\n".join(limits))
        env.pip("install", "--constraint", constraints, "--requirement", wanted)
        has_triton = env.run(env.python, "-c", "import importlib.util as u; print(u.find_spec('triton') is not None)")
        if not has_triton.rstrip().endswith("True"):
            env.pip("install", "--constraint", constraints, triton)
        env.pip("install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", env.root)
    with stage("a first import of torch"):
        env.run(env.python, "-c", "import torch; torch.ones(2).sum()")


@contextlib.contextmanager
def alone(root: Path):
    """Only one set-up at a time; a second waits and then finds the work done."""
    (root / "build").mkdir(exist_ok=True)
    with (root / "build" / "setup.lock").open("w") as handle:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def leave_own_venv(root: Path) -> None:
    """Where `python3` is .venv's own (an activated shell), go on as the interpreter that .venv was made from."""
    if Path(sys.prefix).resolve() == (root / ".venv").resolve():
        os.execv(getattr(sys, "_base_executable", sys.executable), [sys.executable, *sys.argv])


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Make or update .venv")
    parser.add_argument("--venv", choices=["auto", "own", "system"], default="auto")
    asked = parser.parse_args(argv).venv
    if sys.version_info < OLDEST:
        print(f"setup: Python 3.11 or newer is needed, this is {platform.python_version()}", file=sys.stderr)
        print("fix: PYTHON=/path/to/a/newer/python make setup", file=sys.stderr)
        return 2
    leave_own_venv(root)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    env = Environment(root)
    try:
        found = system_torch()
        mode = choose_mode(asked, read_stamp(env.venv).get("mode"), found)
        key = key_of(root, mode, found)
        if is_current(env.venv, mode, key):
            return 0
        with alone(root):
            if is_current(env.venv, mode, key):
                return 0
            start = time.monotonic()
            env.log.write_text("")
            if can_be_updated(env, mode):
                write_stamp(env.venv, "building", mode, key)
            else:
                with stage(f".venv with Python {platform.python_version()}"):
                    make_venv(env, mode, key)
            try:
                install(env, mode, found)
            except SetupError as error:
                if error.clean:
                    write_stamp(env.venv, "stopped", mode, key)
                raise
            write_stamp(env.venv, "ready", mode, key)
            print(f"setup: ready after {time.monotonic() - start:.0f} s", flush=True)
    except SetupError as error:
        print(f"setup: {error.what}\nfix: {error.fix}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"setup: {error.filename or '.venv'}: {error.strerror or error}\nfix: then run it again", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nsetup: interrupted; the same command starts again", file=sys.stderr)
        return 130
    return 0


def can_be_updated(env: Environment, mode: str) -> bool:
    """Whether what is there is sound and only its packages need a change. After a kill it is made anew."""
    stamp = read_stamp(env.venv)
    if stamp.get("state") not in ("ready", "stopped") or mode != "own":
        return False
    if stamp.get("mode") != mode or stamp.get("python") != platform.python_version() or not env.python.exists():
        return False
    with contextlib.suppress(OSError):  # scripts name their interpreter by its whole path: a moved .venv is no use
        return str(env.venv) in (env.venv / "bin" / "pip").read_text().splitlines()[0]
    return False


if __name__ == "__main__":
    sys.exit(main())
