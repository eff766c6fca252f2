"""run_cell: task + backend + seeds -> a stored Run. Every finished sample is on disk before the next counts."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from evalkit import provenance
from evalkit.backends import Backend, BackendFactory, make_backend
from evalkit.baseline import Baseline
from evalkit.config import Cell
from evalkit.errors import EvalkitError
from evalkit.fingerprint import in_words
from evalkit.gate import GateSpec
from evalkit.gate.accuracy import baseline_differences
from evalkit.golden import baseline_for, published
from evalkit.harness import LoadedTask, load_task
from evalkit.interrupts import Interrupted, signals
from evalkit.online_quant import asked
from evalkit.outlook import outlook
from evalkit.preflight import check_documents, check_task, check_template, check_tokens
from evalkit.records import Run
from evalkit.session import Session, Silence, Silent, Watcher
from evalkit.smoke import Smoke, WrongAnswers, smoke_of
from evalkit.spec.find import heads
from evalkit.stopping import Stopper, plan
from evalkit.store import RunHead, RunWriter, open_run


def run_cell(
    cell: Cell,
    *,
    runs_dir: Path = Path("runs"),
    backend: BackendFactory = make_backend,
    watcher: Watcher | None = None,
    fresh: bool = False,
    baseline: Baseline | None = None,
    margin: float | None = None,
    alpha: float | None = None,
) -> Run:
    """Runs a cell to its end and returns the stored Run; an interrupted run of the same cell is continued.

    With `cell.stop_early` a sequential rule at `margin` and `alpha` (the gate's own) against `baseline` (the one in
    golden/) may end the run before its last sample; the Run then says why in `stopped`. A `baseline` of another setting
    is refused before the first request.

    Raises EvalkitError or EngineError for what the user can mend, and Interrupted after SIGINT or SIGTERM.
    """
    watcher = watcher or Silent()
    spec = _rule_spec(cell, margin, alpha)
    with signals() as caught:
        writer: RunWriter | None = None
        total, made = 0, None
        try:
            task = load_task(cell)
            if cell.limit >= task.size:
                cell = replace(cell, limit=0)  # no subset: the whole task, under the name of the whole task
            total = len(task.prompts)
            notes = [*task.notes, *check_task(task)]
            engine = made = backend(cell)
            notes += getattr(engine, "notes", ())
            notes += check_template(task, getattr(engine, "chat_template", False))
            notes += check_tokens(task, getattr(engine, "encode", None), getattr(engine, "context", 0))
            notes += check_documents(task)
            head, stopper = _head(cell, task, engine, notes), None
            if not cell.stop_early:  # whose rule refuses it itself
                _refuse_other(baseline, head)
            if cell.stop_early:
                stopper = _stopper(cell, task, head, baseline, spec)
                head = replace(head, fingerprint=provenance.extend(head.fingerprint, stop_early=asdict(stopper.told())))
            trust = cell.server is None or not cell.server.smoke
            writer = open_run(runs_dir, _named(cell, engine).stem(task.name), head, fresh=fresh, trust=trust)
            with writer:
                try:
                    smoke, ahead = _smoke(cell, task, spec), _outlook(cell, task, head, baseline, spec, runs_dir)
                    return Session(cell, task, engine, writer, watcher, notes, stopper, smoke, ahead).run()
                except Silence:
                    writer.keep([i for i, s in writer.done.items() if s.text.strip() or s.reasoning])
                    raise
                except BaseException as e:
                    writer.remember(engine.counters, doubt=e.what if isinstance(e, WrongAnswers) else "")
                    raise
        except KeyboardInterrupt:
            kept = len(writer.done) if writer else 0
            raise Interrupted(kept=kept, total=total, number=caught[0]) from None
        finally:
            close = getattr(made, "close", None)
            if close is not None:
                close()


def _rule_spec(cell: Cell, margin: float | None, alpha: float | None) -> GateSpec:
    """What a run that stops early is decided by. The gate asks the same rule again at its own alpha, so a larger one
    would end runs that the gate then finds undecided."""
    spec = GateSpec() if margin is None else GateSpec(accuracy_margin=margin)
    if alpha is None:
        return spec
    if not cell.stop_early:
        raise EvalkitError(f"--alpha {alpha:g} without --stop-early: it is the error rate of that rule",
                           "add --stop-early, or leave --alpha away")  # fmt: skip
    if not 0 < alpha <= spec.alpha:
        raise EvalkitError(f"--alpha is {alpha:g}", f"give a number above 0 and at most {spec.alpha:g}, the gate's own")
    return replace(spec, alpha=alpha)


def _stopper(cell: Cell, task: LoadedTask, head: RunHead, baseline: Baseline | None, spec: GateSpec) -> Stopper:
    baseline = baseline or baseline_for(cell.target, task.name)
    return plan(task.prompts, head.fingerprint, baseline, seed=cell.seed, margin=spec.accuracy_margin, alpha=spec.alpha)


def _refuse_other(baseline: Baseline | None, head: RunHead) -> None:
    """A baseline that was named and is of another setting would fail the run at its end: it's refused at its start."""
    if baseline is None:
        return
    setting = {"cell": head.cell, "fingerprint": head.fingerprint, "provenance": {}}
    if differ := in_words(baseline_differences(baseline, setting)):
        raise EvalkitError(f"baseline {baseline.source} is of another setting than this run ({differ})",
                           "give the baseline of this target and task, or leave --baseline away")  # fmt: skip


def _outlook(
    cell: Cell, task: LoadedTask, head: RunHead, baseline: Baseline | None, spec: GateSpec, runs_dir: Path
) -> list[str]:
    """What the run can show and will cost, for the watcher alone: it is no finding, and isn't stored."""
    try:
        baseline = baseline or baseline_for(cell.target, task.name)
    except EvalkitError:
        return []  # the gate says what is wrong with that file
    stored = [old for _, old in heads(runs_dir)]
    return outlook(head, task.prompts, baseline=baseline, references=published(), spec=spec, stored=stored)


def _smoke(cell: Cell, task: LoadedTask, spec: GateSpec) -> Smoke | None:
    """What the first answers of a server are held against; None where nothing is known of it, or not asked for.

    A run of another protocol may well be worse, and is not tested.
    """
    if cell.server is None or not cell.server.smoke or cell.forced or cell.temperature:
        return None
    baseline, score = baseline_for(cell.target, task.name), None
    told = {"task_sha": task.task_sha, "shots": task.shots, "max_tokens": task.max_tokens}
    if baseline and all(baseline.fingerprint.get(name) == value for name, value in told.items()):
        score = baseline.correct / baseline.n
    references = [r for r in published() if r.shots == task.shots and not cell.max_tokens]
    return smoke_of(target=cell.target, task=task.name, baseline=score, references=references,
                    margin=spec.accuracy_margin)  # fmt: skip


def _named(cell: Cell, engine: Backend) -> Cell:
    """The cell that a run is named and hashed by: without an online quantisation that no layer matched."""
    if asked(cell.to_json(), getattr(engine, "record", {})):
        return cell
    return replace(cell, engine=replace(cell.engine, online_quant_config=""))


def _head(cell: Cell, task: LoadedTask, engine: Backend, notes: list[str]) -> RunHead:
    told = {
        "task": task.name,
        "task_sha": task.task_sha,
        "prompts_sha": task.prompts_sha,
        "shots": task.shots,
        "stop": list(task.stop),
        "max_tokens": task.max_tokens,
    }
    settings = dict(engine.settings)
    ids = [p.doc_id for p in task.prompts]
    return RunHead(
        cell={**cell.to_json(), "task": task.name, "shots": task.shots, "max_tokens": task.max_tokens},
        fingerprint=provenance.fingerprint(_named(cell, engine), settings=settings, task=told, doc_ids=ids),
        provenance={
            **provenance.collect(cell, settings=settings, files=task.files),
            **getattr(engine, "record", {}),
            "documents": dict(task.documents),
            "notes": notes,
        },
        expected=len(ids),
        task_size=task.size,
    )
