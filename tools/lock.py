"""Write requirements/base.txt and dev.txt: every package that pyproject's ranges bring in, pinned to one version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
APART = re.compile(r"^(torch|triton|nvidia-.*|cuda-.*)$")  # pinned in torch.txt, or brought by a CUDA torch
BUILD = ["hatchling", "editables"]  # setup installs the checkout without a build environment of its own


def name_of(requirement: str) -> str:
    """The normalised project name at the start of a requirement."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    if not found:
        raise ValueError(f"no package name in {requirement!r}")
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def pins(path: Path) -> list[str]:
    """The requirement lines of a lock file, without comments."""
    if not path.exists():
        return []
    return [line.strip() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def resolve(requirements: list[str], constraints: list[str]) -> dict[str, str]:
    """What pip would install for these requirements in an empty environment: name -> version."""
    with tempfile.TemporaryDirectory() as folder:
        report, limits = Path(folder, "report.json"), Path(folder, "constraints.txt")
        limits.write_text("\n".join(constraints))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), "--constraint", str(limits), *requirements], check=True)
        found = json.loads(report.read_text())["install"]
    return {name_of(item["metadata"]["name"]): item["metadata"]["version"].split("+")[0] for item in found}


def write(path: Path, heading: str, packages: dict[str, str]) -> None:
    """A lock file, sorted by name."""
    lines = [f"{name}=={version}" for name, version in sorted(packages.items()) if not APART.match(name)]
    head = f"# {heading}\n# Written by `make lock`; edit pyproject.toml instead.\n"
    path.write_text(head + "".join(f"{line}\n" for line in lines))


def main(upgrade: bool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = pins(REQUIREMENTS / "torch.txt")
    old = [] if upgrade else pins(REQUIREMENTS / "base.txt") + pins(REQUIREMENTS / "dev.txt")
    asked = [line for line in project["dependencies"] if not APART.match(name_of(line))] + torch[:1] + BUILD
    base = resolve(asked, torch + old)
    everything = resolve(asked + project["optional-dependencies"]["dev"], [f"{k}=={v}" for k, v in base.items()] + old)
    write(REQUIREMENTS / "base.txt", "What evalkit runs with, torch and triton apart (torch.txt).", base)
    dev = {name: version for name, version in everything.items() if name not in base}
    write(REQUIREMENTS / "dev.txt", "What `make test` and `make check` need besides.", dev)


if __name__ == "__main__":
    main(upgrade="--upgrade" in sys.argv[1:])
