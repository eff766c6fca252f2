"""Checkpoint folders as people have them: in shards, damaged, of another model, too large to hold twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.draft.block import BlockDraft
from engine.errors import EngineError
from engine.shard import Share
from engine.weights import fingerprint, load_draft, load_target, made_for
from tests.engine.checkpoints import INDEX, SINGLE, copy, multimodal, write
from tests.engine.tiny import Tiny, build, prompts, requests

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
Q = "model.layers.0.self_attn.q_proj.weight"


def edited(**changes: Tensor | None) -> Change:
    """Tensors by name (with _ for .) replaced, added, or with None left out."""

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: t for n, t in (tensors | changes).items() if t is not None}  # pyright: ignore[reportReturnType]

    return change


def parameters(module: torch.nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    x, y = parameters(a), parameters(b)
    return x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x)


def test_shards_hold_what_one_file_holds(tiny: Tiny, tmp_path: Path) -> None:
    folder = copy(tiny.target, tmp_path / "shards", shards=5)
    assert not (folder / SINGLE).exists() and same(load_target(folder), load_target(tiny.target))


def test_loading_in_bf16_rounds_each_weight_once_but_not_the_correction_bias(tiny: Tiny) -> None:
    whole, rounded = (parameters(load_target(tiny.target, dtype=d)) for d in (torch.float32, torch.bfloat16))
    for name, p in rounded.items():
        is_bias = name.endswith("correction_bias")
        assert p.dtype == (torch.float32 if is_bias else torch.bfloat16)
        assert torch.equal(p, whole[name].to(p.dtype))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edited(**{Q: None}), rf"lacks the tensor {Q}; fix: use a complete"),
        (edited(**{"model.extra.weight": torch.ones(1)}), r"holds the tensor model\.extra\.weight, which"),
        (edited(**{Q: torch.ones(32, 16)}), rf"{Q} has shape \[32, 16\], config.json says \[32, 32\]"),
        (edited(**{Q: torch.ones(32, 32, dtype=torch.int8)}), rf"{Q} is stored as int8 and without scales"),
        (edited(**{Q: torch.ones(32, 32).to(torch.float8_e4m3fn)}), rf"{Q} is stored as float8_e4m3fn and without"),
        (edited(**{Q: torch.full((32, 32), torch.nan)}), rf"{Q} holds a NaN or an infinity"),
        (edited(**{Q: torch.full((32, 32), -torch.inf)}), rf"{Q} holds a NaN or an infinity"),
        (edited(**{f"language_model.{Q}": torch.ones(32, 32)}), "which are the same; fix: keep one of them"),
        (edited(**{"model.dspark.fc.weight": torch.ones(1)}), r"holds the tensor model\.dspark\.fc\.weight"),
    ],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_tensor_that_does_not_do_is_named(
    tiny: Tiny, tmp_path: Path, change: Change, words: str, shards: int
) -> None:
    with pytest.raises(EngineError, match=words) as e:
        load_target(copy(tiny.target, tmp_path / "bad", change, shards=shards))
    assert "\n" not in str(e.value) and "fix: " in str(e.value)


def test_a_router_without_a_correction_bias_is_one_with_a_bias_of_0(tiny: Tiny, tmp_path: Path) -> None:
    """use_routing_bias false: the checkpoint has none, also not for a share of it."""
    is_bias = lambda n: n.endswith("e_score_correction_bias")  # noqa: E731
    none = copy(tiny.target, tmp_path / "none", lambda ts: {n: t for n, t in ts.items() if not is_bias(n)},
                config=lambda c: c | {"use_routing_bias": False})  # fmt: skip
    zero = copy(tiny.target, tmp_path / "zero", lambda ts: {n: t * 0 if is_bias(n) else t for n, t in ts.items()})
    assert same(load_target(none), load_target(zero))
    share = Share(rank=0, size=1), Share(rank=0, size=2)
    assert all(same(load_target(none, share=s), load_target(zero, share=s)) for s in share)


def test_tied_embeddings_and_a_head_of_its_own_disagree(tmp_path: Path) -> None:
    tied = build(tmp_path / "tied", tie_word_embeddings=True).target

    def with_head(factor: int) -> Path:
        change: Change = lambda t: t | {"lm_head.weight": factor * t["model.embed_tokens.weight"]}  # noqa: E731
        return copy(tied, tmp_path / str(factor), change)

    load_target(with_head(1))
    with pytest.raises(EngineError, match=r"says tie_word_embeddings and holds an lm_head\.weight of its own"):
        load_target(with_head(2))


def test_an_index_that_is_not_true(tiny: Tiny, tmp_path: Path) -> None:
    folder = copy(tiny.target, tmp_path / "a", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(EngineError, match=r"model-00002-of-00003\.safetensors does not exist; fix: restore"):
        load_target(folder)
    folder = copy(tiny.target, tmp_path / "b", shards=3)
    index = json.loads((folder / INDEX).read_text())
    other = next(f for f in index["weight_map"].values() if f != index["weight_map"][Q])
    for change, words in (
        (lambda m: {**m, "model.more": m[Q]}, r"names tensors that its shards lack, model\.more among 1"),
        (lambda m: {n: f for n, f in m.items() if n != Q}, rf"lacks tensors that its shards hold, {Q} among 1"),
        (
            lambda m: {**m, Q: other},
            rf"names {other} for {Q}, which is in {index['weight_map'][Q]} .1 such.; fix: restore",
        ),
        (lambda m: {**m, Q: "../elsewhere.safetensors"}, "no weight_map of tensors to files beside it"),
    ):
        (folder / INDEX).write_text(json.dumps({"weight_map": change(index["weight_map"])}))
        with pytest.raises(EngineError, match=words):
            load_target(folder)
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2)]
    one, two = (load_file(folder / name) for name in names)
    (folder / INDEX).write_text(json.dumps(index))
    twice = next(iter(one))
    save_file(two | {twice: one[twice] + 1}, folder / names[1])
    with pytest.raises(EngineError, match=rf"holds {twice} twice, in {names[0]} and in {names[1]}; fix: keep the one"):
        load_target(folder)
    folder = copy(tiny.target, tmp_path / "c", shards=3)
    save_file({Q: torch.zeros(1)}, folder / SINGLE)
    with pytest.raises(EngineError, match=rf"holds {SINGLE} beside shards, and {INDEX} does not name it; fix: remove"):
        load_target(folder)
    (folder / INDEX).write_text("{")
    with pytest.raises(EngineError, match="cannot be read as JSON"):
        load_target(folder)


def test_a_cut_file_and_a_pickle(tiny: Tiny, tmp_path: Path) -> None:
    folder = copy(tiny.target, tmp_path / "bad")
    (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes()[:-100])
    with pytest.raises(EngineError, match="is damaged or truncated"):
        load_target(folder)
    (folder / SINGLE).unlink()
    with pytest.raises(EngineError, match=r"model\.safetensors does not exist"):
        load_target(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")  # what is in it does not matter: it is not opened
    with pytest.raises(EngineError, match=r"a pickle \(pytorch_model.bin\), .*; fix: convert it .*save_pretrained"):
        load_target(folder)


def test_a_draft_of_another_target_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    target = load_target(tiny.target)
    mark = fingerprint(target)
    assert mark == fingerprint(load_target(tiny.target, dtype=torch.bfloat16))
    assert mark == fingerprint(load_target(tiny.target, share=Share(rank=1, size=2)))
    mine = copy(tiny.draft, tmp_path / "mine", config=lambda c: c | made_for(target) | {"num_target_layers": 3})
    assert isinstance(load_draft(mine, target), BlockDraft)
    other = load_target(build(tmp_path / "other", seed=1).target)
    with pytest.raises(EngineError, match=r"has target_fingerprint .*: it was made for another one; fix: use the"):
        load_draft(mine, other)
    load_draft(tiny.draft, other)  # nothing recorded, and the shapes fit
    for change, words in (
        ({"num_target_layers": 6}, "has num_target_layers 6, the target 3"),
        ({"hidden_size": 64, "head_dim": 32}, "has hidden size 64, the target 32"),
        ({"target_layer_ids": [0, 3]}, "captures layers"),
        ({"capture_convention": "pre_layer"}, "with post-layer ids"),
    ):
        with pytest.raises(EngineError, match=words):
            load_draft(copy(tiny.draft, tmp_path / words[4:12], config=lambda c, new=change: c | new), target)


def inline(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of MiniMax-M3.1's draft."""
    out = {}
    for name, t in tensors.items():
        parts = name.split(".")
        if parts[0] == "layers":
            parts.insert(2, "decoder_layer")
        out[".".join(["language_model", "model", "dspark", *(["final_norm"] if parts[0] == "norm" else parts[:1]),
                      *parts[1:]])] = t  # fmt: skip
    return out


FIELDS = {"block_size": "dspark_block_size", "mask_token_id": "dspark_noise_token_id",
          "markov_rank": "dspark_markov_rank", "target_layer_ids": "dspark_target_layer_ids"}  # fmt: skip


def m31_config(config: dict[str, Any]) -> dict[str, Any]:
    text = {FIELDS.get(k, k): v for k, v in config.items() if k != "architectures"}
    return {"architectures": ["DSparkMiniMaxDraftModel"], "text_config": text}


def test_a_draft_in_the_folder_dspark_of_its_target(tiny: Tiny, tmp_path: Path) -> None:
    """MiniMax-M3.1's published layout, found without a path, drafts what DeepSpec's layout drafts."""
    folder = copy(tiny.target, tmp_path / "target")
    copy(tiny.draft, folder / "dspark", inline, config=m31_config, shards=2)
    assert same(load_draft(folder, load_target(folder)), load_draft(tiny.draft, load_target(tiny.target)))
    asked = requests(prompts(3), max_tokens=12)
    runs = [t.llm(k=5, draft_path=path).generate(asked)
            for t, path in ((tiny, tiny.draft), (Tiny(folder, folder), None))]  # fmt: skip
    for a, b in zip(*runs, strict=True):
        assert a.token_ids == b.token_ids and [s.accepted for s in a.steps] == [s.accepted for s in b.steps]
    assert any(s.accepted for a in runs[0] for s in a.steps)


def test_a_draft_among_its_targets_tensors(tiny: Tiny, tmp_path: Path) -> None:
    draft = json.loads((tiny.draft / "config.json").read_text())
    fields = {FIELDS[k]: draft[k] for k in FIELDS} | {"enable_confidence_head": True}
    folder = copy(tiny.target, tmp_path / "both", config=lambda c: multimodal(c | fields))
    nested = {f"language_model.{n}": t for n, t in load_file(tiny.target / SINGLE).items()}
    write(folder, nested | inline(load_file(tiny.draft / SINGLE)), shards=3)
    target = load_target(folder)
    assert same(target, load_target(tiny.target))
    assert same(load_draft(folder, target), load_draft(tiny.draft, target))


LOAD = """
import sys, torch
from pathlib import Path
from engine import tensor_files
from engine.shard import Share
from engine.weights import load_target
folder, size = Path(sys.argv[1]), int(sys.argv[2])
tensor_files.MAPPED = int(sys.argv[3])
share = Share(rank=size - 1, size=size)
def status(key):
    line = next(l for l in open('/proc/self/status') if l.startswith(key))
    return int(line.split()[1]) * 1024
torch.ones(8, dtype=torch.bfloat16).isfinite().all()  # what a first use allocates
open('/proc/self/clear_refs', 'w').write('5')  # the peak counts from here
before = status('VmHWM')
model = load_target(folder, dtype=torch.bfloat16, share=share)
size = sum(p.nbytes for p in model.parameters())
print(before, status('VmHWM'), size)
"""


def large(folder: Path, *, shards: bool) -> tuple[int, int]:
    """A Llama of 96 MB in bf16, in 8 shards or one file. Bytes of its largest file and of its largest tensor."""
    hidden, layers, vocab = 512, 8, 512
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "num_hidden_layers": layers,
              "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 3328, "vocab_size": vocab,
              "max_position_embeddings": 64, "tie_word_embeddings": True, "rope_theta": 1e4}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {f"self_attn.{p}_proj": (hidden, hidden) for p in "qkvo"} | {"mlp.down_proj": (hidden, 3328)}
    sizes |= {f"mlp.{p}_proj": (3328, hidden) for p in ("gate", "up")}
    sizes |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    ones = {n: torch.ones(s, dtype=torch.bfloat16) for n, s in sizes.items()}
    parts = [{f"model.layers.{i}.{n}.weight": t.clone() for n, t in ones.items()} for i in range(layers)]
    parts[0] |= {"model.embed_tokens.weight": torch.ones(vocab, hidden, dtype=torch.bfloat16),
                 "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16)}  # fmt: skip
    if not shards:
        save_file({n: t for part in parts for n, t in part.items()}, folder / SINGLE)
        return (folder / SINGLE).stat().st_size, max(t.nbytes for t in ones.values())
    for i, part in enumerate(parts):
        save_file(part, folder / f"model-{i}.safetensors")
    where = {n: f"model-{i}.safetensors" for i, part in enumerate(parts) for n in part}
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    return max(f.stat().st_size for f in folder.glob("*.safetensors")), max(t.nbytes for t in ones.values())


def added(folder: Path, size: int = 1, mapped: int = 32 * 2**20) -> tuple[int, int]:
    """Bytes that loading the last share of `size` adds at its peak, and those of what it makes.

    What else the process touches meanwhile only adds to the peak, so the least of three loads is the loader's own.
    """
    loads = []
    for _ in range(3):
        ask = [sys.executable, "-c", LOAD, str(folder), str(size), str(mapped)]
        done = subprocess.run(ask, capture_output=True, text=True, check=True)
        loads.append(tuple(map(int, done.stdout.split())))
    before, peak, made = min(loads, key=lambda x: x[1] - x[0])
    return peak - before, made


NO_PROC = not Path("/proc/self/clear_refs").exists()
SLACK = 16e6


@pytest.mark.skipif(NO_PROC, reason="peak memory is read from Linux's /proc")
def test_peak_memory_is_the_model_and_one_shard(tmp_path: Path) -> None:
    """Reading all of it first, or float32 on the way, would take 190 MB and more."""
    shard, _ = large(tmp_path / "large", shards=True)
    peak, made = added(tmp_path / "large")
    assert made > 90e6
    assert peak <= made + shard + SLACK


@pytest.mark.skipif(NO_PROC, reason="peak memory is read from Linux's /proc")
def test_peak_memory_of_a_rank_is_its_share_and_one_tensor(tmp_path: Path) -> None:
    """The whole model in one file, a quarter of it a rank: loading it whole and cutting it would take 96 MB and more,
    and so would keeping the file mapped."""
    file, tensor = large(tmp_path / "large", shards=False)
    peak, made = added(tmp_path / "large", size=4, mapped=2**20)
    assert file > 90e6 and made < 0.26 * file
    assert peak <= made + tensor + SLACK
