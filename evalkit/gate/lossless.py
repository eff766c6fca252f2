"""The run's texts against another's of the same prompts: a plain run (K=0) for losslessness, or a run of the same
setting in another layout (batch, concurrency, TP, kernels), since many faults need one to be seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalkit.chances import p_value
from evalkit.fingerprint import BEFORE, acceptance_fingerprint, accuracy_fingerprint, in_words, online_facts
from evalkit.gate.common import FAIL, INCONCLUSIVE, PASS, checked
from evalkit.gate.limits import GateSpec
from evalkit.lossless import Losslessness, compare, law_p
from evalkit.records import Check, Outcome, Run, Sample

EXACT = "float32"
LAYOUT = ("max_batch", "concurrency", "tp", "mono", "graphs", "kernels", "prefix_cache")
CAUSE = {"lossless": "the draft", "layout": "the layout"}
LAW_ALPHA = 0.001  # chance that texts of one law are refused


def lossless_check(run: Run, plain: Run | None, spec: GateSpec) -> Check:
    """In float32 every text must be the same. In reduced precision a divergence is explained by a near-tie only."""
    exact = _of(run, "quant") == EXACT and not online_facts(run) and _of(run, "dtype") in (EXACT, None)
    return _texts_check("lossless", "the texts of plain decoding", "plain run", run, plain, _refusal(run, plain), spec,
                        exact=exact)  # fmt: skip


def layout_check(run: Run, twin: Run | None, spec: GateSpec) -> Check:
    """Another batch or another TP takes sums in another order, so a divergence at a near-tie is no fault in any
    precision."""
    apart = {} if twin is None else _layouts(run, twin)
    words = ", ".join(f"{name} {a} / {b}" for name, (a, b) in apart.items())
    return _texts_check("layout", "the texts of another layout", f"{words} in run" if words else "run", run, twin,
                        _other_setting(run, twin, apart), spec, exact=False)  # fmt: skip


def _texts_check(
    name: str, expected: str, what: str, run: Run, other: Run | None, refusal: str, spec: GateSpec, *, exact: bool
) -> Check:
    numbers: dict[str, Any] = {"compared": 0}

    def check(outcome: Outcome, found: str, words: str) -> Check:
        return checked(name, outcome, expected, found, words, **numbers)

    if other is None or refusal:
        return check(INCONCLUSIVE, "nothing compared", f"no text compared: {refusal}")
    texts = {(s.doc_hash, s.prompt_hash): s for s in other.samples if not s.error}
    answered = [s for s in run.samples if not s.error]
    pairs = [(s, texts[s.doc_hash, s.prompt_hash]) for s in answered if (s.doc_hash, s.prompt_hash) in texts]
    if len(pairs) < len(answered) or not pairs:
        found = f"{len(pairs)} of {len(answered)} samples are in {what} {other.id}"
        return check(FAIL, found, f"only {found}: the same task, shots and template needed")
    if run.cell.get("temperature"):
        return _sampled(pairs, f"{what} {other.id}", CAUSE[name], check, numbers)
    found = compare(pairs)
    parted = len(found.divergences)
    numbers |= {
        "compared": found.compared, "divergences": parted, "tokens": found.tokens,
        "flips_per_token": parted / found.tokens if found.tokens else None,
        "unexplained": len(found.unexplained(spec.tie_gap)), "unknown": len(found.unknown()), "tie_gap": spec.tie_gap,
    }  # fmt: skip
    same = f"{found.compared - parted} of {found.compared} texts are those of {what} {other.id}"
    outcome, why = _outcome(found, spec, exact=exact)
    return check(outcome, same, same + (f"; {parted} part, {why}" if parted else ""))


def _sampled(
    pairs: Sequence[tuple[Sample, Sample]],
    other: str,
    cause: str,
    check: Callable[[Outcome, str, str], Check],
    numbers: dict[str, Any],
) -> Check:
    """Sampled texts differ by chance, so their law is compared. No difference seen proves none: the p is said."""
    p = law_p(pairs)
    if p is None:
        return check(INCONCLUSIVE, "no text", "no text was emitted: nothing to compare")
    numbers |= {"compared": len(pairs), "law_p": p, "law_alpha": LAW_ALPHA}
    words = f"{len(pairs)} sampled texts against those of {other}: {p_value(p)} for one law of their tokens"
    if p > LAW_ALPHA:
        return check(PASS, p_value(p), f"{words}; refused at {LAW_ALPHA:g}")
    return check(FAIL, p_value(p), f"{words}: {cause} changes what is sampled (residual, verify rule, seeds)")


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


def _other_setting(run: Run, twin: Run | None, apart: Mapping[str, Any]) -> str:
    """Why a run says nothing of this one's layout; "" where it does: all the same but how it was laid out."""
    if twin is None:
        return "no run of another layout is given"
    words = in_words(acceptance_fingerprint(run).differences(acceptance_fingerprint(twin)))
    for name in ("quant", "dtype"):
        if (a := _of(run, name)) != (b := _of(twin, name)):
            words += f"{', ' if words else ''}{name} {a} / {b}"
    if words:
        return f"{twin.id} is of another setting ({words})"
    return "" if apart else f"{twin.id} has the same layout ({', '.join(LAYOUT)}): it would show nothing"


def _layouts(run: Run, twin: Run) -> dict[str, tuple[Any, Any]]:
    """What of their layouts differs: (here, there) by name."""
    here, there = ({**BEFORE, **run.cell, **_served(run)}, {**BEFORE, **twin.cell, **_served(twin)})
    return {n.removeprefix("max_"): (here.get(n), there.get(n)) for n in LAYOUT if here.get(n) != there.get(n)}


def _served(run: Run) -> dict[str, Any]:
    server = run.cell.get("server")
    return {n: server.get(n) for n in ("tp", "concurrency")} if isinstance(server, Mapping) else {}


def _of(run: Run, name: str) -> Any:
    return run.fingerprint.get(name, run.cell.get(name))


def _outcome(found: Losslessness, spec: GateSpec, *, exact: bool) -> tuple[Outcome, str]:
    if not found.divergences:
        return PASS, ""
    if exact:
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
