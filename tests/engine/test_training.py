"""The recipe: rows, optimiser, and that a killed run ends with the same bytes as one that was left alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.checkpoint_config import parse_model_config
from engine.config import EngineConfig
from engine.llm import LLM
from engine.model import Target
from engine.moe import MoE
from engine.training import recipe as recipes
from engine.training.attend import CausalAttend
from engine.training.calibrate import expected_calibration_error, fit_temperatures
from engine.training.eagle3 import Eagle3Plan, Eagle3Shape
from engine.training.optim import lr_factor, orthogonalise
from engine.training.recipe import DRAFTS, Recipe, task_stream
from engine.training.target import SettlePlan, TargetPlan
from engine.training.text import EOS, QA, pack, prompt, train_tokenizer
from engine.training.tilt import balance, experts_of, rebalance, tilt_routers
from engine.weights import save_checkpoint, target_names

REFERENCE = Path(__file__).resolve().parents[2] / "engine" / "reference"


def tiny(folder: Path) -> Recipe:
    plans = {"steps": 3, "short": (2, 96), "long": (1, 128), "anchors": 8, "save_every": 1}
    return Recipe(
        build=folder / "build",
        out=folder / "out",
        stream=task_stream(),
        threads=1,
        target=TargetPlan(steps=4, short=(2, 64), long=(1, 96), quant_from=0.5, save_every=1),
        settle=SettlePlan(steps=2, short=(2, 64), long=(1, 96), save_every=1),
        drafts=tuple(replace(d, plan=replace(d.plan, **plans)) for d in DRAFTS),
        eagle3=Eagle3Shape(plan=Eagle3Plan(**plans)),
        outputs=8,
        calibration=2,
        say=lambda line: None,
    )


def weights(recipe: Recipe) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in recipe.out.glob("*/model.safetensors")}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's own answers from the generator: an untrained target would write to the limit each time."""

    def outputs(recipe: Recipe) -> list[QA]:
        return list(itertools.islice(recipe.stream(1), recipe.outputs))

    monkeypatch.setattr(recipes, "outputs_stage", outputs)
    monkeypatch.setattr(recipes, "TOKENIZER_PROBLEMS", 2000)
    monkeypatch.setattr(recipes, "MAX_ANSWER", 24)


class Killed(Exception):
    pass


@pytest.mark.usefixtures("quick")
def test_a_killed_recipe_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = tiny(tmp_path / "whole"), tiny(tmp_path / "broken")
    recipes.run(whole)

    from engine.training.checkpoint import TrainState

    save, count = TrainState.save, itertools.count()

    def save_and_die(self: TrainState, *args: object) -> None:
        save(self, *args)  # type: ignore[arg-type]
        if next(count) in (1, 5):  # once in the target's training, once in a draft's
            raise Killed

    monkeypatch.setattr(TrainState, "save", save_and_die)
    for _ in range(2):
        with pytest.raises(Killed):
            recipes.run(broken)
    recipes.run(broken)

    assert weights(whole).keys() == {"target", "draft", "draft-weak", "draft-eagle3"}
    assert weights(whole) == weights(broken)


def test_the_stream_has_no_test_question() -> None:
    from tasks.gradeschool import generator

    hashes = generator.test_hashes()
    questions = [q for q, _ in itertools.islice(task_stream()(TargetPlan().seed), 3000)]
    assert not hashes & {generator.question_hash(q) for q in questions}


def test_rows_mark_answers_and_end_documents() -> None:
    tok = train_tokenizer((f"{prompt(q)} {a}" for q, a in itertools.islice(task_stream()(5), 500)), 400)

    def problems() -> Iterator[QA]:
        return task_stream()(9)

    question, answer = next(problems())
    rows = pack(problems(), tok, rows=2, length=200, joined=False, rng=random.Random(0))
    first = tok.encode(prompt(question)).ids
    told = tok.encode(" " + answer).ids
    assert rows.ids[0, : len(first)].tolist() == first
    assert not rows.answer[0, : len(first)].any()
    end = len(first) + len(told)
    assert rows.ids[0, len(first) : end + 1].tolist() == [*told, EOS]
    assert rows.answer[0, len(first) : end + 1].all()
    joined = pack(problems(), tok, rows=1, length=400, joined=True, rng=random.Random(0))
    assert (rows.ids == EOS).sum() > (joined.ids == EOS).sum()


def test_orthogonalise_brings_singular_values_near_one() -> None:
    g = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(0))
    for batch in (g, g.mT):
        values = torch.linalg.svdvals(orthogonalise(batch))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_fitted_temperatures_mend_an_overconfident_head() -> None:
    """Seed 0. Outcomes are drawn from known chances; the head says the same chances at half the temperature."""
    g = torch.Generator().manual_seed(0)
    true = torch.rand(20_000, 3, dtype=torch.float64, generator=g) * 0.8 + 0.15
    kept = torch.rand(true.shape, dtype=torch.float64, generator=g) < true
    accepted = kept.long().cumprod(1).sum(1)
    said = torch.sigmoid(torch.logit(true) * 2.0)
    fitted = fit_temperatures(said, accepted, torch.full_like(accepted, 3))
    assert fitted == pytest.approx([2.0, 2.0, 2.0], rel=0.2)
    before, after = said.prod(1), torch.sigmoid(torch.logit(said) / torch.tensor(fitted)).prod(1)
    happened = accepted == 3
    assert expected_calibration_error(after, happened) < 0.5 * expected_calibration_error(before, happened)


def test_lr_factor_rises_holds_and_falls_to_zero() -> None:
    at = [lr_factor(x, warmup=0.1, hold=0.5) for x in (0.05, 0.1, 0.5, 0.75, 1.0)]
    assert at == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.0])


def sparse_target() -> Target:
    torch.manual_seed(0)
    cfg = parse_model_config(dict(recipes.TARGET_CONFIG), Path("config.json"))
    return recipes.seeded(lambda: Target(cfg), seed=0)


def test_the_index_loss_reaches_the_index_alone() -> None:
    target = sparse_target()
    rows = torch.randint(3, 700, (2, 64), generator=torch.Generator().manual_seed(0))
    attend = CausalAttend(64, sparse=target.cfg.sparse, queries=torch.arange(16, 64, 3))
    target(rows.flatten(), torch.arange(64).repeat(2), attend)
    assert len(attend.index_losses) == 5
    torch.stack(attend.index_losses).mean().backward()
    moved = {n.split(".")[2] for n, p in target.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert moved == {"indexer"}


def test_the_index_learns_where_attention_looks() -> None:
    """One layer's index, on its own loss: the divergence from that layer's attention falls to a fraction."""
    target = sparse_target()
    torch.nn.init.normal_(target.get_parameter("layers.1.attn.qkv.weight"), std=0.3)  # attention that prefers some keys
    rows = torch.randint(3, 700, (1, 128), generator=torch.Generator().manual_seed(1)).flatten()
    losses = []
    params = [p for n, p in target.named_parameters() if n.startswith("layers.1.indexer")]
    optimizer = torch.optim.Adam(params, lr=3e-3)
    for _ in range(60):
        attend = CausalAttend(128, sparse=target.cfg.sparse, queries=torch.arange(16, 128))
        target(rows, torch.arange(128), attend)
        loss = attend.index_losses[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_balance_moves_the_bias_against_the_load() -> None:
    target = sparse_target()
    experts = experts_of(target)
    experts[0].load = torch.tensor([10, 0, 5, 5, 5, 5, 5, 5])
    assert balance(experts, 0.25) == 2.0
    assert experts[0].correction_bias.tolist() == [-0.25, 0.25, 0, 0, 0, 0, 0, 0]
    assert not experts[1].correction_bias.any()


def test_a_tilt_is_carried_by_the_bias() -> None:
    """Tilted routers alone send most rows to few experts; the biases make the load even again."""
    target = sparse_target().train()
    experts = experts_of(target)
    rows = torch.randint(3, 700, (256,), generator=torch.Generator().manual_seed(4))

    def forward(step: int) -> None:
        target(rows, torch.arange(256), CausalAttend(256))

    def load(moe: MoE) -> float:
        assert moe.load is not None
        return float(moe.load.max() / moe.load.float().mean())

    tilt_routers(target, 4.0, forward)
    forward(0)
    assert all(load(m) > 2.5 for m in experts), "at most 4: 2 of 8 experts serve every row"
    assert rebalance(target, forward) < 1.5
    for moe in experts:
        moe.correction_bias.zero_()
    forward(0)
    assert all(load(m) > 2.5 for m in experts)


def test_training_and_the_engine_compute_the_same(tmp_path: Path) -> None:
    """Logits of whole rows in training form, blocks picked, against the engine's chunks through its pages."""
    target = sparse_target()
    for name, p in target.named_parameters():
        torch.nn.init.normal_(p, std=0.3 if p.ndim == 1 else 2 * p.shape[-1] ** -0.5)
        if name.endswith("correction_bias"):
            p.data *= 0.5
    recipes.write_config(tmp_path, recipes.TARGET_CONFIG)
    save_checkpoint(target, target_names(target.cfg), tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((REFERENCE / "target" / "tokenizer.json").read_bytes())
    ids = torch.randint(3, 700, (150,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        hidden, _ = target.eval()(ids, torch.arange(150), CausalAttend(150, sparse=target.cfg.sparse, pick=True))
        want = target.logits(hidden)[9:-1].log_softmax(-1).gather(1, ids[10:, None]).squeeze(1)
    llm = LLM(EngineConfig(model=tmp_path, max_batched_tokens=37, device="cpu"))
    got, _ = llm.score(ids[:10].tolist(), ids[10:].tolist())
    torch.testing.assert_close(torch.tensor(got), want, rtol=1e-4, atol=1e-4)
