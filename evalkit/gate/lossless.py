"""Losslessness: the run's texts against those of a plain run (K=0) of the same prompts, target and quant mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evalkit.chances import p_value
from evalkit.fingerprint import accuracy_fingerprint, in_words
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked
from evalkit.gate.limits import GateSpec
from evalkit.lossless import Losslessness, compare, law_p
from evalkit.records import Check, Outcome, Run, Sample

EXACT = "float32"
LAW_ALPHA = 0.001  # chance that texts of one law are refused


def lossless_check(run: Run, plain: Run | None, spec: GateSpec) -> Check:
    """In float32 every text must be the same. In reduced precision a divergence is explained by a near-tie only."""
    expected = "the texts of plain decoding"
    numbers: dict[str, Any] = {"compared": 0}

    def check(outcome: Outcome, found: str, words: str) -> Check:
        return checked("lossless", outcome, expected, found, words, **numbers)

    why = _refusal(run, plain)
    if plain is None or why:
        return check(INCONCLUSIVE, "nothing compared", f"no text compared: {why}")
    texts = {(s.doc_hash, s.prompt_hash): s for s in plain.samples if not s.error}
    answered = [s for s in run.samples if not s.error]
    pairs = [(s, texts[s.doc_hash, s.prompt_hash]) for s in answered if (s.doc_hash, s.prompt_hash) in texts]
    if len(pairs) < len(answered) or not pairs:
        found = f"{len(pairs)} of {len(answered)} samples are in plain run {plain.id}"
        return check(FAIL, found, f"only {found}: the same task, shots and template needed")
    if run.cell.get("temperature"):
        return _sampled(pairs, plain, check, numbers)
    found = compare(pairs)
    parted = len(found.divergences)
    numbers |= {
        "compared": found.compared, "divergences": parted, "tokens": found.tokens,
        "flips_per_token": parted / found.tokens if found.tokens else None,
        "unexplained": len(found.unexplained(spec.tie_gap)), "unknown": len(found.unknown()), "tie_gap": spec.tie_gap,
    }  # fmt: skip
    same = f"{found.compared - parted} of {found.compared} texts are those of plain run {plain.id}"
    outcome, why = _outcome(run, found, spec)
    return check(outcome, same, same + (f"; {parted} part, {why}" if parted else ""))


def _sampled(
    pairs: Sequence[tuple[Sample, Sample]],
    plain: Run,
    check: Callable[[Outcome, str, str], Check],
    numbers: dict[str, Any],
) -> Check:
    """Sampled texts differ by chance, so their law is compared. No difference seen proves none: the p is said."""
    p = law_p(pairs)
    if p is None:
        return check(INCONCLUSIVE, "no text", "no text was emitted: nothing to compare")
    numbers |= {"compared": len(pairs), "law_p": p, "law_alpha": LAW_ALPHA}
    words = (
        f"{len(pairs)} sampled texts against those of plain run {plain.id}: {p_value(p)} for one law of their tokens"
    )
    if p > LAW_ALPHA:
        return check(PASS, p_value(p), f"{words}; refused at {LAW_ALPHA:g}")
    return check(FAIL, p_value(p), f"{words}: the draft changes what is sampled (residual, verify rule, seeds)")


def _refusal(run: Run, plain: Run | None) -> str:
    if plain is None:
        return "no plain run (K=0, same quant mode) is given"
    if plain.cell.get("k") != 0:
        return f"{plain.id} is a run at K={plain.cell.get('k')}, not a plain one"
    if plain.id == run.id:
        return f"{plain.id} is the run itself, and always has its own texts"
    differ = [*accuracy_fingerprint(run).differences(accuracy_fingerprint(plain))]
    words = in_words(differ)
    for name in ("quant", "dtype"):
        a, b = _of(run, name), _of(plain, name)
        if a != b:
            words += f"{', ' if words else ''}{name} {a} / {b}"
    return f"{plain.id} is of another setting ({words})" if words else ""


def _of(run: Run, name: str) -> Any:
    return run.fingerprint.get(name, run.cell.get(name))


def _outcome(run: Run, found: Losslessness, spec: GateSpec) -> tuple[Outcome, str]:
    if not found.divergences:
        return PASS, ""
    if _of(run, "quant") == EXACT and _of(run, "dtype") in (EXACT, None):
        return FAIL, f"in float32 none may; first {found.divergences[0]}"
    if bad := found.unexplained(spec.tie_gap):
        return (
            FAIL,
            f"{len(bad)} of them at a gap over {spec.tie_gap:g}, which rounding does not explain; first {bad[0]}",
        )
    if unknown := found.unknown():
        words = f"first {unknown[0]}: a near-tie can't be told from a bug"
        return INCONCLUSIVE, f"{words}; an engine that records the gaps would tell"
    return PASS, f"each at a gap of at most {spec.tie_gap:g} (near-ties); first {found.divergences[0]}"
