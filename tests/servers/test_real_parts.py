"""The parts of `make test-servers` that need no server."""

from __future__ import annotations

import sys
import zipfile

import pytest

from evalkit.records import Sample, StepRecord
from tools.realservers.evidence import stop_was_a_draft
from tools.realservers.install import Failed, Skip, name_of, requirements, run
from tools.realservers.page import markdown
from tools.realservers.qwen3_gguf import name_of as gguf_name


def sample(tokens, *steps):
    records = tuple(StepRecord(k=3, accepted=a, accepted_trimmed=t) for a, t in steps)
    return Sample(doc_id=0, doc_hash="", prompt_hash="", question="", gold="", tokens=tokens, steps=records)


def test_a_stop_id_is_a_draft_where_the_last_step_gave_no_token_of_its_own():
    assert not stop_was_a_draft(sample(1 + 3 + 2, (1, 1), (2, 2)))  # the target's own token ended it
    assert stop_was_a_draft(sample(1 + 3 + 1, (1, 1), (2, 2)))  # the second of three drafts did
    assert not stop_was_a_draft(sample(1 + 4 + 1, (1, 1), (3, 3)))  # the last slot: llama.cpp counts it too


def test_requirements_keep_their_extras_and_lose_what_is_optional(tmp_path):
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wants = ["fastapi[standard]>=0.1", "numpy", "pytest; extra == 'test'", "dos; sys_platform == 'win32'"]
    with zipfile.ZipFile(wheel, "w") as made:
        text = "Metadata-Version: 2.1\nName: x\nVersion: 1\n" + "".join(f"Requires-Dist: {w}\n" for w in wants)
        made.writestr("x-1.dist-info/METADATA", text)
    assert requirements(wheel) == ["fastapi[standard]>=0.1", "numpy"]
    assert name_of("torch==2.13.0+cpu") == "torch"


def test_weights_have_llama_cpp_s_names():
    assert gguf_name("model.layers.5.self_attn.k_norm.weight") == "blk.5.attn_k_norm.weight"
    assert gguf_name("layers.0.mlp.down_proj.weight") == "blk.0.ffn_down.weight"
    assert gguf_name("hidden_norm.weight") == "enc.output_norm.weight"
    with pytest.raises(KeyError):
        gguf_name("model.layers.0.mlp.experts.w1.weight")


def test_the_page_says_what_was_skipped_and_why():
    case = {"title": "T", "about": "A.", "rows": [], "lines": [], "verdict": [], "skipped": "no such wheel"}
    assert "## T\n\nA.\n\nSKIP: no such wheel" in markdown({"cases": [case]})


def test_a_package_that_cannot_be_had_is_a_skip_and_any_other_command_a_failure(tmp_path):
    with pytest.raises(Skip, match=r"install .* failed: "):
        run(sys.executable, "-m", "pip", "install", "--no-index", "--target", tmp_path, "no-such-package-of-ours")
    with pytest.raises(Failed, match="failed: one line"):
        run(sys.executable, "-c", "import sys; sys.exit('one line')")
