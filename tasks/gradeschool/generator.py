"""Draw grade-school word problems; `--write` regenerates the committed data."""

from __future__ import annotations

import argparse
import hashlib
import json
import operator
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tasks.gradeschool import figures, templates_money, templates_quantities, templates_rates
from tasks.gradeschool.drawing import TEMPLATES, Draw, fmt
from tasks.gradeschool.problem import Problem

# Importing these files registers their templates, and the order of the imports above is the order
# of the draws: another order makes other problems from the same seed.
TEMPLATE_FILES = (templates_money, templates_quantities, templates_rates)

DATA = Path(__file__).parent / "data"
README = Path(__file__).parent / "README.md"
TRAIN_COUNT, TRAIN_SEED = 2000, 20_001
TEST_COUNT, TEST_SEED = 1319, 20_002  # as many as GSM8K's test split

_NAMES = tuple(TEMPLATES)
_WEIGHTS = tuple(t.weight for t in TEMPLATES.values())

_NUMBER = r"-?\$?\d[\d,]*%?"
_STATEMENT = re.compile(rf"({_NUMBER}) ([-+*/]) ({_NUMBER}) = ({_NUMBER})")
_FINAL = re.compile(r"#### (-?\d[\d,]*)")
_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def make_problem(rng: random.Random) -> Problem:
    """Draw a template, then its words and numbers."""
    name = rng.choices(_NAMES, _WEIGHTS)[0]
    drawn = TEMPLATES[name].function(Draw(rng))
    answer = "\n".join((*drawn.lines, f"#### {fmt(drawn.value)}"))
    return Problem(drawn.question, answer, drawn.value, name, len(drawn.lines))


def question_hash(question: str) -> str:
    """A short hash of the question, blind to case and spacing."""
    normal = " ".join(question.lower().split())
    return hashlib.sha256(normal.encode()).hexdigest()[:16]


def stream(seed: int, exclude: frozenset[str] = frozenset()) -> Iterator[Problem]:
    """Endless seeded problems without those whose question hash is excluded."""
    rng = random.Random(seed)
    while True:
        problem = make_problem(rng)
        if not exclude or question_hash(problem.question) not in exclude:
            yield problem


def test_hashes() -> frozenset[str]:
    """Question hashes of the committed test split."""
    lines = (DATA / "test.jsonl").read_text(encoding="ascii").splitlines()
    return frozenset(question_hash(json.loads(line)["question"]) for line in lines)


def _number(text: str) -> float:
    value = float(re.sub(r"[$,%]", "", text))
    return value / 100 if text.endswith("%") else value


def check(problem: Problem) -> None:
    """Recompute the solution; ValueError when any part of it does not hold."""
    *lines, last = problem.answer.split("\n")
    if len(lines) != problem.steps or not 1 <= problem.steps <= 5:
        raise ValueError(f"{len(lines)} solution lines, steps says {problem.steps}: {problem.answer!r}")
    result = float("nan")
    for line in lines:
        statements = _STATEMENT.findall(line)
        if len(statements) != 1 or line.count("=") != 1:
            raise ValueError(f"not exactly one statement in {line!r}")
        left, sign, right, said = statements[0]
        result = _OPERATORS[sign](_number(left), _number(right))
        if result != _number(said):
            raise ValueError(f"{left} {sign} {right} is {result:g}, not {said}: {line!r}")
    final = _FINAL.fullmatch(last)
    if final is None or final[1] != fmt(problem.value):
        raise ValueError(f"last line {last!r} does not give {fmt(problem.value)}")
    if result != problem.value:
        raise ValueError(f"the lines end in {result:g}, the answer is {problem.value}")


def unique_problems(seed: int, count: int, exclude: frozenset[str] = frozenset()) -> list[Problem]:
    """The first `count` problems of a stream with no question twice."""
    found: dict[str, Problem] = {}
    for problem in stream(seed, exclude):
        found.setdefault(question_hash(problem.question), problem)
        if len(found) == count:
            break
    return list(found.values())


def make_splits() -> dict[str, list[Problem]]:
    """The committed splits, test first and train without its questions."""
    test = unique_problems(TEST_SEED, TEST_COUNT)
    exclude = frozenset(question_hash(p.question) for p in test)
    return {"train": unique_problems(TRAIN_SEED, TRAIN_COUNT, exclude), "test": test}


def to_jsonl(split: str, problems: list[Problem]) -> str:
    """The text of a split's data file."""
    rows = (
        {
            "id": f"{split}-{index:04d}",
            "question": p.question,
            "answer": p.answer,
            "template": p.template,
            "steps": p.steps,
        }
        for index, p in enumerate(problems)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def write() -> None:
    """Regenerate data/*.jsonl and the figures in README.md."""
    splits = make_splits()
    for problem in (p for problems in splits.values() for p in problems):
        check(problem)
    DATA.mkdir(exist_ok=True)
    for split, problems in splits.items():
        (DATA / f"{split}.jsonl").write_text(to_jsonl(split, problems), encoding="ascii")
    readme = figures.insert(README.read_text(encoding="utf-8"), figures.render(splits))
    README.write_text(readme, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="regenerate the data and README figures")
    parser.add_argument("--show", type=int, default=10, metavar="N", help="print N problems")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems shown")
    args = parser.parse_args()
    if args.write:
        write()
        return
    for problem in islice(stream(args.seed), args.show):
        print(f"[{problem.template}, {problem.steps} steps]\n{problem.question}\n{problem.answer}\n")


if __name__ == "__main__":
    main()
