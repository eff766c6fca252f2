from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine import LLM, Completion, Request
from engine.draft import Proposal
from engine.draft.eagle3 import Eagle3Drafter, reference_drafts
from engine.draft.eagle3_model import Eagle3Draft
from engine.eagle3_config import load_eagle3_config, parse_eagle3_config
from engine.errors import EngineError
from engine.request import Sequence
from engine.sampling import Laws, probabilities
from engine.training.attend import CausalAttend
from engine.training.draft import Anchors
from engine.training.eagle3 import Eagle3Plan, chain_logits, eagle3_loss
from engine.training.text import Rows
from engine.weights import load_target, made_for
from tests.engine.test_verify import FALSE_ALARM, law_p_value
from tests.engine.tiny import VOCAB, Tiny, build, prompts, requests

PATH = Path("config.json")
PROMPT = (7, 30, 11, 9, 41)


def ids(out: list[Completion]) -> list[tuple[int, ...]]:
    return [o.token_ids for o in out]


def accepted(out: list[Completion]) -> list[list[int]]:
    return [[s.accepted for s in o.steps] for o in out]


def variant(tiny: Tiny, folder: Path, extra: dict[str, Tensor] | None = None, **config: Any) -> Tiny:
    """The tiny EAGLE3 draft with other fields in its config.json and other tensors beside its own."""
    shutil.copytree(tiny.eagle3, folder)
    raw = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(raw))
    if extra:
        file = folder / "model.safetensors"
        save_file({n: t for n, t in (load_file(file) | extra).items() if t.numel()}, file)
    return replace(tiny, eagle3=folder)


class Recorder(Eagle3Drafter):
    """Keeps what it proposed: (tokens so far, drafts)."""

    seen: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def propose(self, seqs: list[Sequence], counts: list[int], page_table: Tensor, laws: Laws | None) -> Proposal:
        got = super().propose(seqs, counts, page_table, laws)
        for seq, k, row in zip(seqs, counts, got.tokens.tolist(), strict=True):
            self.seen.append((tuple(seq.tokens), tuple(row[:k])))
        return got


def record(tiny: Tiny, ask: list[Request], **settings: Any) -> tuple[list[Completion], Recorder, LLM]:
    llm = tiny.llm(draft="eagle3", **settings)
    drafter = llm.drafter
    assert isinstance(drafter, Eagle3Drafter)
    recorder = Recorder(drafter.draft)
    recorder.seen = []
    recorder.bind(drafter.cache, drafter.layer)
    llm.drafter = llm.runner.drafter = recorder
    return llm.generate(ask), recorder, llm


@pytest.mark.parametrize("k", [1, 4, 7])
def test_speculative_greedy_is_plain_greedy(tiny: Tiny, k: int) -> None:
    ask = requests(prompts(16, shared=6), max_tokens=24)
    plain = ids(tiny.llm().generate(ask))
    llm = tiny.llm(k=k, draft="eagle3", max_batch=5, max_batched_tokens=17)
    got = llm.generate(ask)
    assert ids(got) == plain
    assert 0 < sum(map(sum, accepted(got))) < k * llm.counters["verify_steps"]
    assert all(s.confidence == () for o in got for s in o.steps)
    assert llm.pool.in_use == 0


@pytest.mark.parametrize("norm_output", [False, True])
def test_proposals_are_those_of_the_slow_twin(tiny: Tiny, tmp_path: Path, norm_output: bool) -> None:
    """Chunked prefill, shared prefixes and a ragged batch against all pairs computed anew from the text alone."""
    tiny = variant(tiny, tmp_path / "e", norm_output=norm_output)
    ask = requests([(5,), *prompts(6, shared=9)], max_tokens=16)
    _, recorder, llm = record(tiny, ask, k=4, max_batch=4, max_batched_tokens=11)
    assert len(recorder.seen) > 30
    assert llm.scheduler.cached_tokens > 0
    for tokens, drafts in recorder.seen:
        attend = CausalAttend(len(tokens) - 1, sparse=llm.target.cfg.sparse, pick=True)
        with torch.inference_mode():
            given = torch.tensor(tokens[:-1])
            _, features = llm.target(given, torch.arange(len(given)), attend, recorder.capture)
            assert list(drafts) == reference_drafts(recorder.draft, features, list(tokens), len(drafts))


def test_prefix_chunks_batch_and_preemption_leave_drafts_alone(tiny: Tiny) -> None:
    ask = requests(prompts(10, shared=14), max_tokens=20)
    alone, one_by_one, _ = record(tiny, ask, k=5, max_batch=1, prefix_cache=False)
    want, steps = (ids(alone), accepted(alone)), sorted(one_by_one.seen)
    for settings in (
        {"max_batched_tokens": 9},
        {"prefix_cache": False},
        {"num_pages": 40, "max_batched_tokens": 9, "prefix_cache": False},
    ):
        got, recorder, llm = record(tiny, ask, k=5, **settings)
        assert (ids(got), accepted(got)) == want
        assert sorted(set(recorder.seen)) == sorted(set(steps))
        assert bool(llm.counters["preemptions"]) == ("num_pages" in settings)
    cold, recorder, llm = record(tiny, ask, k=5)
    first, recorder.seen = recorder.seen, []
    warm = llm.generate(ask)
    assert sum(o.cached_tokens for o in warm) > sum(o.cached_tokens for o in cold)
    assert (ids(warm), accepted(warm)) == want
    assert sorted(recorder.seen) == sorted(first)


def test_a_prefix_without_its_features_would_be_seen(tiny: Tiny) -> None:
    """The check above can fail: with the draft's stored vectors wiped, proposals change and the text does not."""
    ask = requests(prompts(8, shared=14), max_tokens=20)
    cold, recorder, llm = record(tiny, ask, k=5)
    first, recorder.seen = recorder.seen, []
    for part in (*llm.cache._pages[recorder.layer], *llm.cache._index[recorder.layer]):
        part.zero_()
    assert ids(llm.generate(ask)) == ids(cold)
    assert sorted(recorder.seen) != sorted(first)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_blocks_shrink_at_the_end_of_the_context(tiny: Tiny, temperature: float) -> None:
    ask = requests([(5,) * n for n in (110, 120, 126, 127)], max_tokens=99, ignore_eos=True, temperature=temperature)
    got = tiny.llm(k=7, draft="eagle3").generate(ask)
    assert {o.prompt_tokens + len(o.token_ids) for o in got} == {128}
    assert {s.k for o in got for s in o.steps} > {7, 0}


def test_other_modes_run(tiny: Tiny, tmp_path: Path) -> None:
    """bf16 with fp8 KV, a norm for each captured layer, another residual: drafts are sometimes kept."""
    gains = {f"fc_norm.{i}.weight": torch.ones(32) for i in range(3)}
    other = variant(tiny, tmp_path / "e", gains, fc_norm=True, norm_before_residual=True)
    ask = requests(prompts(6), max_tokens=16)
    for quant, dtype in (("float32", "float32"), ("fp8", "bf16")):
        got = other.llm(k=3, draft="eagle3", quant=quant, dtype=dtype).generate(ask)
        assert sum(map(sum, accepted(got))) > 0
        if quant == "float32":
            assert ids(got) == ids(tiny.llm().generate(ask))


def test_its_layer_is_quantised_online_and_its_vectors_are_counted(tiny: Tiny) -> None:
    """PTPC-FP8 weights for q, k, v, o and the MLP, not for fc and the head; one float32 vector more of each token."""
    online = '{"global_quant_config": "ptpc_fp8"}'
    llm = tiny.llm(k=3, draft="eagle3", quant="bf16", dtype="float32", online_quant_config=online)
    drafter = llm.drafter
    assert isinstance(drafter, Eagle3Drafter)
    kinds = {n: type(m).__name__ for n, m in drafter.draft.named_modules() if "Linear" in type(m).__name__}
    wide = {n for n, kind in kinds.items() if kind == "QuantLinear"}
    assert wide == {"midlayer.attn.qkv", "midlayer.attn.o", "midlayer.mlp.gate_up", "midlayer.mlp.down"}
    assert kinds.keys() - wide == {"fc", "head"}
    assert sum(map(sum, accepted(llm.generate(requests(prompts(4), max_tokens=12))))) > 0
    spec = llm.cache.layers[-1]
    assert (spec.index_format, spec.index_dim) == (llm.quant.dtype, 32)
    width = torch.finfo(llm.cache.dtype).bits // 8
    assert spec.bytes_per_token == width * (2 * 2 * 16 + 32)


def test_two_ranks_draft_as_one(tmp_path: Path) -> None:
    """The layer is cut like any other; fc, head and the stored features are whole on each rank."""
    wide = build(tmp_path, heads=(4, 2))
    for temperature in (0.0, 1.0):
        ask = requests(prompts(4), max_tokens=10, temperature=temperature)
        one = wide.llm(k=3, draft="eagle3").generate(ask)
        with closing(wide.llm(k=3, draft="eagle3", tp=2)) as llm:
            two = llm.generate(ask)
        assert (ids(two), accepted(two)) == (ids(one), accepted(one))


# ------------------------------------------------------------------ training


def test_training_passes_are_those_of_the_engine(tiny: Tiny) -> None:
    """Rows whose answers are the draft's own tokens: each pass puts the next of them first, from both anchors."""
    llm = tiny.llm(draft="eagle3", k=5)
    drafter, target = llm.drafter, llm.target
    assert isinstance(drafter, Eagle3Drafter)
    texts, drafts, features = [[9, 5, 33, 12], [7, 41, 8, 30, 22, 11]], [], []
    ids = torch.zeros(2, 12, dtype=torch.int64)
    with torch.inference_mode():
        for row, text in enumerate(texts):
            given = torch.tensor(text[:-1])
            attend = CausalAttend(len(given), sparse=target.cfg.sparse, pick=True)
            _, found = target(given, torch.arange(len(given)), attend, drafter.capture)
            drafts.append(reference_drafts(drafter.draft, found, text, 5))
            ids[row, : len(text) + 5] = torch.tensor([*text, *drafts[-1]])
            features.append(torch.cat((found, torch.randn(12 - len(found), found.shape[1]))))
        rows = Rows(ids, torch.ones_like(ids, dtype=torch.bool))
        anchors = Anchors(torch.arange(2), torch.tensor([len(t) - 1 for t in texts]))
        logits = chain_logits(drafter.draft, torch.cat(features), rows, anchors, 5)
    assert logits.argmax(-1).tolist() == drafts


def test_training_lowers_the_loss_and_counts_answers_alone(tiny: Tiny) -> None:
    torch.manual_seed(0)
    target = load_target(tiny.target)
    cfg = load_eagle3_config(tiny.eagle3)
    draft = Eagle3Draft(cfg, target.embed, cfg.capture(target.cfg.num_layers))
    ids = torch.randint(3, len(VOCAB), (2, 24))
    answer = torch.zeros_like(ids, dtype=torch.bool)
    answer[:, 8:20] = True
    anchors, plan = Anchors(torch.tensor([0, 0, 1]), torch.tensor([8, 17, 12])), Eagle3Plan(steps=1)
    losses = []
    optimizer = torch.optim.Adam(draft.parameters(), lr=3e-3)
    for _ in range(25):
        loss, accept = eagle3_loss(draft, target, Rows(ids, answer), anchors, plan)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert accept.shape == (7,)
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in draft.parameters())
    # Past the answer's end nothing counts: other tokens there give the same loss.
    changed = ids.clone()
    changed[:, 21:] = 5
    same, _ = eagle3_loss(draft, target, Rows(changed, answer), anchors, plan)
    again, _ = eagle3_loss(draft, target, Rows(ids, answer), anchors, plan)
    assert float(same.detach()) == pytest.approx(float(again.detach()), rel=1e-5)


# ------------------------------------------------------------------ sampling


def law_of_three(llm: LLM, prompt: tuple[int, ...], ask: Request) -> dict[tuple[int, ...], float]:
    """Exact law of the three tokens after the prompt, by the plain target."""
    laws = Laws.of([ask.params], [0], torch.device("cpu"))
    assert laws is not None
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        for tail, chance in found.items():
            text = torch.tensor([*prompt, *tail])
            with torch.inference_mode():
                attend = CausalAttend(len(text), sparse=llm.target.cfg.sparse, pick=True)
                hidden, _ = llm.target(text, torch.arange(len(text)), attend)
                p = probabilities(llm.target.logits(hidden[-1:]), laws)[0]
            longer |= {(*tail, int(t)): chance * float(p[t]) for t in p.nonzero()}
        found = longer
    return found


class Level(Eagle3Drafter):
    """Broken on purpose: says that it drew from all tokens alike."""

    def propose(self, seqs: list[Sequence], counts: list[int], page_table: Tensor, laws: Laws | None) -> Proposal:
        got = super().propose(seqs, counts, page_table, laws)
        assert got.probs is not None
        return replace(got, probs=torch.full_like(got.probs, 1 / got.probs.shape[-1]))


@pytest.mark.stat
def test_sampled_text_has_the_target_s_law(tiny: Tiny) -> None:
    """Joint law of three tokens, each of the top 3, 2500 requests, false alarm 1e-4; other probs break it."""
    ask = requests([PROMPT] * 2500, max_tokens=3, temperature=1.5, top_k=3, ignore_eos=True)
    law = law_of_three(tiny.llm(), PROMPT, ask[0])
    for broken in (False, True):
        llm = tiny.llm(k=2, draft="eagle3")
        drafter = llm.drafter
        assert isinstance(drafter, Eagle3Drafter)
        if broken:
            drafter.__class__ = Level
        out = llm.generate(ask)
        assert sum(map(sum, accepted(out))) > 0
        places = {tail: i for i, tail in enumerate(law)}
        seen = torch.bincount(torch.tensor([places[o.token_ids] for o in out]), minlength=len(law))
        p = law_p_value(seen, torch.tensor(list(law.values()), dtype=torch.float64))
        assert (p < 1e-6) if broken else (p > FALSE_ALARM)


# ------------------------------------------------------------------ checkpoints


def test_a_draft_vocabulary_is_mapped_to_the_target_s(tiny: Tiny, tmp_path: Path) -> None:
    """A head of every other row: it proposes those tokens alone, and the text stays plain."""
    kept = torch.arange(0, len(VOCAB), 2)
    head = load_file(tiny.eagle3 / "model.safetensors")["lm_head.weight"][kept].clone()
    mask = torch.zeros(len(VOCAB), dtype=torch.bool)
    mask[kept] = True
    maps = {"d2t": kept - torch.arange(len(kept)), "t2d": mask, "lm_head.weight": head}
    small = variant(tiny, tmp_path / "e", maps, draft_vocab_size=len(kept))
    ask = requests(prompts(6), max_tokens=16)
    out, recorder, _ = record(small, ask, k=4)
    assert ids(out) == ids(tiny.llm().generate(ask))
    assert {t for _, drafts in recorder.seen for t in drafts} <= set(kept.tolist())
    assert sum(map(sum, accepted(out))) > 0
    sampled = small.llm(k=3, draft="eagle3").generate(requests(prompts(4), max_tokens=12, temperature=1.0))
    assert any(s.accepted for o in sampled for s in o.steps)

    for name, bad in (("d2t", torch.zeros(len(kept), dtype=torch.int64) - 1), ("t2d", ~mask)):
        broken = variant(small, tmp_path / name, {name: bad})
        with pytest.raises(EngineError, match="d2t"):
            broken.llm(k=3, draft="eagle3")
    with pytest.raises(EngineError, match="has no d2t"):
        variant(small, tmp_path / "none", {"d2t": torch.empty(0)}).llm(k=3, draft="eagle3")


def test_layers_0_and_an_own_embedding_are_read(tiny: Tiny, tmp_path: Path) -> None:
    tensors = load_file(tiny.eagle3 / "model.safetensors")
    other = variant(tiny, tmp_path / "e")
    named = {n.replace("midlayer.", "layers.0."): t for n, t in tensors.items()}
    named["embed_tokens.weight"] = load_file(tiny.target / "model.safetensors")["model.embed_tokens.weight"]
    save_file(named, other.eagle3 / "model.safetensors")
    ask = requests(prompts(4), max_tokens=12)
    assert accepted(other.llm(k=3, draft="eagle3").generate(ask)) == accepted(
        tiny.llm(k=3, draft="eagle3").generate(ask)
    )


def raw(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 512,
        "rope_theta": 1e4,
    } | changes  # fmt: skip


def aux(*layers: int) -> dict[str, Any]:
    return {"eagle_aux_hidden_state_layer_ids": list(layers)}


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, (1, 4, 6)),  # 2, 5, 7 of 10 layers, pre-layer
        ({"eagle_config": aux(0, 3, 9)}, (-1, 2, 8)),
        (aux(1, 3, 5), (0, 2, 4)),
        ({"eagle_config": aux(0, 3, 9), "capture_convention": "post_layer"}, (0, 3, 9)),
        ({"eagle_config": aux(1, 2)}, (0, 1)),
    ],
)
def test_ids_are_turned_to_post_layer_once(changes: dict[str, Any], want: tuple[int, ...]) -> None:
    assert parse_eagle3_config(raw(**changes), PATH).capture(10) == want


def test_rope_theta_is_read_in_both_spellings() -> None:
    new = raw(rope_theta=None, rope_parameters={"rope_theta": 5e6, "rope_type": "default"})
    assert parse_eagle3_config(new, PATH).model.rope_theta == 5e6
    assert parse_eagle3_config(raw(rope_theta=None), PATH).model.rope_theta == 1e4


@pytest.mark.parametrize(
    "changes",
    [
        {"eagle_config": aux(1, 3, 10)},  # nothing enters layer 10 of 0..9
        {"eagle_config": aux(-1, 3, 5)},
        {"eagle_config": aux(3, 3, 5)},
        {"eagle_config": aux(1, 3, 10), "capture_convention": "post_layer"},
    ],
)
def test_ids_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the target has 10"):
        parse_eagle3_config(raw(**changes), PATH).capture(10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen3DSparkModel"]}, "architecture 'Qwen3DSparkModel'"),
        ({"num_hidden_layers": 2}, "num_hidden_layers 2"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"norm_before_fc": True}, "norm_before_fc True"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"eagle_config": aux(1, 2, 3)} | aux(2, 3, 4), "twice, and different"),
        ({"capture_convention": "after"}, "capture_convention 'after'"),
        ({"rope_parameters": {"rope_theta": 5e6}}, "rope_theta twice"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type 'llama3'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"intermediate_size": None}, "no intermediate_size"),
        ({"num_key_value_heads": 3}, "4 heads"),
    ],
)
def test_unknown_variants_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        parse_eagle3_config(raw(**changes), PATH)


@pytest.mark.parametrize(
    "name",
    ["hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size",
     "target_hidden_size", "intermediate_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "norm_output",
     "rope_parameters", "eagle_config", "eagle_aux_hidden_state_layer_ids", "capture_convention", "architectures"],
)  # fmt: skip
def test_nonsense_in_a_field_is_one_line_or_harmless(name: str) -> None:
    for value in (0, -1, 1.5, float("nan"), True, "abc", [], [1], ["x", None], {}, {"a": 1}):
        try:
            cfg = parse_eagle3_config(raw(**{name: value}), PATH)
        except EngineError as e:
            assert "\n" not in str(e) and e.fix
            continue
        assert min(cfg.model.hidden_size, cfg.model.num_heads, cfg.target_hidden_size, cfg.draft_vocab_size) >= 1
        assert all(type(i) is int for i in cfg.layer_ids)


def test_a_draft_of_another_target_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"eagle_config": aux(1, 2, 30)}, "captures layers"),
        ({"eagle_config": aux(1, 2)}, "fc.weight has shape"),
        ({"target_hidden_size": 64}, "hidden size of 64, not 32"),
        ({"vocab_size": 99, "draft_vocab_size": 60}, "vocabulary 99"),
    ]
    for i, (changes, message) in enumerate(cases):
        with pytest.raises(EngineError, match=message):
            variant(tiny, tmp_path / str(i), **changes).llm(k=3, draft="eagle3")
    with pytest.raises(EngineError, match=r"more\.weight, which its config\.json does not account for"):
        variant(tiny, tmp_path / "more", {"more.weight": torch.ones(1)}).llm(k=3, draft="eagle3")
    target = load_target(tiny.target)
    own: dict[str, Any] = {**made_for(target)}
    variant(tiny, tmp_path / "mine", **own).llm(k=3, draft="eagle3")
    with pytest.raises(EngineError, match=r"has target_fingerprint 12, the target [0-9a-f]{64}: .*; fix: use the"):
        variant(tiny, tmp_path / "other", target_fingerprint="12").llm(k=3, draft="eagle3")
    with pytest.raises(EngineError, match="draft_width is block, and eagle3 drafts no blocks; fix: use draft_width k"):
        tiny.llm(k=3, draft="eagle3", draft_width="block")
    with pytest.raises(EngineError, match="eagle3 has no checkpoint"):
        tiny.llm(k=3, draft="eagle3", draft_path=None)
