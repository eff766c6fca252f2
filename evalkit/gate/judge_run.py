"""judge(run, baseline, golden, references, spec) -> Verdict: pure, no file access, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from evalkit.answers import answer_checks, format_check, unanswered_check
from evalkit.baseline import Baseline, ReferenceScore
from evalkit.errors import EvalkitError
from evalkit.gate.acceptance import acceptance_checks
from evalkit.gate.accuracy import accuracy_check, is_own_baseline
from evalkit.gate.common import combine, correct_of
from evalkit.gate.demands import demand
from evalkit.gate.floor import baseline_floor_check, floor_check
from evalkit.gate.limits import GateSpec
from evalkit.gate.lossless import layout_check, lossless_check
from evalkit.gate.published import published_checks
from evalkit.gate.reading import reading_check
from evalkit.gate.served import age_check, path_check
from evalkit.gate.whole import broken_scores, completeness, protocol, requests, truncated
from evalkit.golden import Curve
from evalkit.records import Check, Run, Sample, Verdict
from evalkit.servercheck import server_notes, setting_check

MAX_K = 1000  # far past any draft: a K that was mistyped would fill the memory


def judge(
    run: Run,
    *,
    baseline: Baseline | None,
    golden: Curve | None,
    references: Sequence[ReferenceScore] = (),
    spec: GateSpec | None = None,
    plain: Run | None = None,
    twin: Run | None = None,
    now: str = "",
) -> Verdict:
    """The verdict on one run. `golden` is the curve to look K up in; a missing standard is never a pass.

    `plain` is a run at K=0 of the same prompts and quant mode, for losslessness, `twin` one of the same
    setting in another layout; `now` is an ISO time with zone, for the
    age that `spec` may limit.
    """
    spec = spec or GateSpec()
    k = run.cell.get("k")
    if type(k) is not int or not 0 <= k <= MAX_K:
        what = f"run {run.id} says K={k}, expected a whole number from 0 to {MAX_K}"
        raise EvalkitError(what, "run it again with this evalkit")
    notes: list[str] = server_notes(run)
    answered = [s for s in run.samples if not s.error]
    checks = [completeness(run, baseline, spec, notes), requests(run, spec), truncated(answered, spec)]
    checks += setting_check(run)
    unscored: list[str] = []
    checks += answer_checks(answered, spec.answers, unscored)
    broken = broken_scores(answered)
    checks.append(broken or protocol(answered))
    checks += reading_check(run, answered)
    if not broken:
        form, accuracy = format_check(answered, spec.answers, accuracy_check(run, answered, baseline, spec))
        own = is_own_baseline(run, baseline)
        if own:
            notes.append("this run is the baseline: its accuracy is compared with nothing, as it would be with itself")
        checks += [*form, *([] if own else [accuracy]), *unanswered_check(run, spec.accuracy_margin)]
        checks += published_checks(run, answered, references, spec, notes)
        checks += _floors(answered, baseline, spec, notes)
    checks += acceptance_checks(run, k, golden, spec, notes)
    if plain is not None or "lossless" in spec.demands:
        checks.append(lossless_check(run, plain, spec))
    if twin is not None or "layout" in spec.demands:
        checks.append(layout_check(run, twin, spec))
    checks += [path_check(run, path) for path in spec.paths]
    if spec.max_age_days is not None:
        checks.append(age_check(run, spec.max_age_days, now))
    checks = demand(checks, spec.demands, k)
    outcome = combine([c.outcome for c in checks])
    return Verdict(outcome=outcome, checks=tuple(checks), run_id=run.id, notes=(*notes, *unscored))


def _floors(answered: Sequence[Sample], baseline: Baseline | None, spec: GateSpec, notes: list[str]) -> list[Check]:
    """The run against the absolute floor, and its baseline too: a baseline that is broken is a finding of its own."""
    if spec.floor is None:
        return []
    own = floor_check(correct_of(answered), len(answered), spec, notes)
    return [own] if baseline is None else [own, baseline_floor_check(baseline, spec)]
