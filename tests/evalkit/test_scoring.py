"""The canonical score, lm-eval's readings without lm-eval, and what is counted from them; by case number."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.config import ROOT
from evalkit.degenerate import degenerate
from evalkit.errors import EvalkitError
from evalkit.numbers import last_number, scan, whole_text
from evalkit.reading import cut_run_on, gold_number, visible
from evalkit.records import Bucket, CanonicalScore, Sample, StepRecord
from evalkit.runfile import pack_sample, read_json, unpack_sample
from evalkit.scoring import bucket_of, canonical, score_sample, score_samples
from evalkit.shares import bucket_counts, drift, group_by_document, score_range
from evalkit.views import FLEXIBLE, STRICT, Pick, flexible_view, strict_view

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k" / "test.jsonl"
GRADESCHOOL = ROOT / "tasks" / "gradeschool" / "data" / "test.jsonl"
TASKS: dict[str, Pick] = {"gsm8k/task.yaml": "first", "gsm8k/inferencex.yaml": "last", "gradeschool/task.yaml": "first"}
needs_gsm8k = pytest.mark.skipif(not GSM8K.is_file(), reason=f"no {GSM8K}: GSM8K's test split is not in the repository")


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sample(text: str, gold: str = "18", *, pick: Pick = "first", scored: bool = True, **more: Any) -> Sample:
    """A finished sample with lm-eval's two scores and, unless told otherwise, the canonical one."""
    views = {STRICT: strict_view(text, gold, pick), FLEXIBLE: flexible_view(text, gold)}
    known: dict[str, Any] = {
        "doc_id": 0, "doc_hash": "d", "prompt_hash": "p", "question": "q", "gold": gold, "text": text, "tokens": 9,
        "finish_reason": "stop", "scores": {n: float(v.correct) for n, v in views.items()},
        "extracted": {n: v.extracted for n, v in views.items()},
    }  # fmt: skip
    made = Sample(**(known | more))
    return replace(made, canonical=score_sample(made)) if scored else made


# --- the number-format table, row by row


@pytest.mark.parametrize(
    ("text", "value", "reason", "notes"),
    [
        ("#### $1,000", "1000", "marker", {"currency", "separators"}),
        ("#### 1,000.00", "1000", "marker", {"separators"}),
        ("#### 18.", "18", "marker", set()),
        ("#### -10", "-10", "marker", set()),
        ("#### \u221210", "-10", "marker", {"sign"}),
        ("#### 5 apples", "5", "marker", {"unit"}),
        ("#### **5**", "5", "marker", set()),
        ("####5", "5", "marker", set()),
        ("\\boxed{18}", "18", "boxed", set()),
        ("#### 1/2", "0.5", "marker", {"fraction"}),
        ("#### 1e3", "1000", "marker", {"exponent"}),
        ("18%", "18", "last number", {"percent"}),
        ("#### 1 000", "1000", "marker", {"separators"}),
        ("#### 1\u00a0000", "1000", "marker", {"separators"}),
        ("#### 1\u2009000", "1000", "marker", {"separators"}),
        ("#### 1\u202f000", "1000", "marker", {"separators"}),
        ("#### 18\n\nQuestion: How many?\nAnswer: 3 + 4 = 7\n#### 7", "18", "marker", {"run-on"}),
        ("Example #### 8 and now mine #### 18", "18", "marker", set()),
        ("#### \uff11\uff18", "18", "marker", {"full width"}),
        ("So it is \uff11\uff18\u3002", "18", "last number", {"full width"}),
        (
            "#### \uff0d\uff11\uff0c\uff10\uff10\uff10\uff0e\uff15",
            "-1000.5",
            "marker",
            {"full width", "sign", "separators"},
        ),
        ("#### \uff04\uff11\uff18", "18", "marker", {"full width", "currency"}),
    ],
)
def test_number_format_is_read(text: str, value: str, reason: str, notes: set[str]) -> None:
    found = canonical(text, value)
    assert (found.value, found.reason, set(found.notes)) == (value, reason, notes)
    assert found.raw_span in text and found.bucket is Bucket.ANSWERED
    assert found.correct is ("fraction" not in notes or value != "1")


@pytest.mark.parametrize("text", ["#### 3:00", "#### ,", "#### .", "####", "#### 1,2", "#### 12-05-2024", "#### $"])
def test_number_format_is_no_number(text: str) -> None:
    found = canonical(text, "3")
    assert (found.value, found.bucket, found.correct) == ("", Bucket.NO_ANSWER, None)


def test_number_format_fraction_is_wrong_but_not_one() -> None:
    assert canonical("#### 1/2", "1").correct is False
    assert canonical("#### 4/2", "2").correct is False, "not worked out"
    assert canonical("#### 1/2", "0.5").correct is True
    assert canonical("#### \\frac{1}{2}", "0.5").value == canonical("#### 0.50", "1").value == "0.5"
    assert canonical("#### 1/3", "1").value == "1/3" and canonical("#### 1 1/2", "2").value == "1.5"
    assert canonical("#### 1/0", "0").bucket is Bucket.NO_ANSWER


def test_number_format_boxed_is_a_miss_of_the_strict_view() -> None:
    assert not strict_view("\\boxed{18}", "18").correct
    assert sample("\\boxed{18}").canonical == CanonicalScore(
        value="18", raw_span="18", correct=True, bucket=Bucket.ANSWERED, reason="boxed", disagreement="boxed"
    )


@needs_gsm8k
def test_number_format_gold_answers_of_gsm8k() -> None:
    golds = [row["answer"] for row in rows(GSM8K)]
    found = [gold_number(gold) for gold in golds]
    assert len(golds) == 1319 and all(found)
    assert sum("," in gold.split("#### ")[-1] for gold in golds) == 14
    assert [i for i, n in enumerate(found) if n and n.value < 0] == [489, 1113]
    for gold in golds:
        assert canonical(gold, gold).correct is True
        assert strict_view(gold, gold).correct


def test_gold_answers_of_gradeschool() -> None:
    for row in rows(GRADESCHOOL):
        found = sample(row["answer"], row["answer"]).canonical
        assert found is not None and found.correct is True and found.reason == "marker"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("from 16-3 to 5 - 3 and 10 -4", ["16", "3", "5", "3", "10", "-4"]),
        ("5 100 dollar bills", ["5", "100"]),
        ("in 2020 100 people", ["2020", "100"]),
        ("1,2,3 and 1,234,56 and 3,5", [None, None, None]),
        ("the 2nd at 3:00 on 1/2/2024 in v1.2.3 x2 10^3", [None, None, None, "10"]),
        ("-$5 $-5 \\$5 USD 5 5\u20ac Rs.500", ["-5", "-5", "5", "5", "5", "500"]),
        ("1{,}000 and 1\\,000 and .5", ["1000", "1000", "0.5"]),
        ("<<48/2=24>>24", ["24", "24", "24"]),
        ("9" * 101 + " 1e999", [None, None]),
        ("0.1 0.125 10% 1,000,000.50", ["0.1", "0.125", "10", "1000000.5"]),
    ],
)
def test_numbers_in_running_text(text: str, values: list[str | None]) -> None:
    assert [n.text if n else None for n in scan(text)] == values


def test_values_are_exact() -> None:
    found = [n.value for n in scan("0.1 0.2 0.3 1/3") if n]
    assert found[0] + found[1] == found[2] and found[3] == Fraction(1, 3)
    assert canonical("#### 0.30000000000000004", "0.3").correct is False
    assert canonical("#### 18.000", "18").correct is True


@given(st.fractions(min_value=-(10**12), max_value=10**12), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_a_number_written_is_the_number_read(value: Fraction, style: int) -> None:
    cents = Fraction(round(value * 100), 100)
    words = f"{float(cents):.2f}" if abs(cents) < 10**9 else str(int(cents))
    if style == 1 and "." in words and abs(cents) < 10**9:
        words = f"{float(cents):,.2f}"
    if style == 2:
        words = words.replace("-", "\u2212")
    found = whole_text(words)
    assert found is not None and found.value == (cents if abs(cents) < 10**9 else int(cents))
    assert canonical(f"so #### {words} units", found.text).correct is True


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("0123456789.,-$/:% #\\{}\n=<>*"), max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_text_is_scored(text: str) -> None:
    found = score_sample(sample(text, "18", scored=False))
    assert (found.correct is None) == (found.bucket is not Bucket.ANSWERED)
    assert found.raw_span in text
    assert found.value or found.correct is None


# --- lm-eval's own filters and ours


@cache
def lm_eval_task(name: str) -> Any:
    from lm_eval.filters import build_filter_ensemble

    config = yaml.safe_load((ROOT / "tasks" / name).read_text(encoding="utf-8"))
    ensembles = [
        build_filter_ensemble(
            entry["name"],
            [(f["function"], {k: v for k, v in f.items() if k != "function"} or None) for f in entry["filter"]],
        )
        for entry in config["filter_list"]
    ]
    metric = {
        k: v for k, v in config["metric_list"][0].items() if k not in ("metric", "aggregation", "higher_is_better")
    }
    return ensembles, metric


METRICS: dict[tuple[str, str, str], bool] = {}  # the tasks ask for one metric: most pairs come three times


def lm_eval_equal(name: str, found: str, gold: str) -> bool:
    from lm_eval.api.metrics import exact_match_hf_evaluate

    metric = lm_eval_task(name)[1]
    key = (json.dumps(metric), found, gold)
    if key not in METRICS:
        METRICS[key] = bool(exact_match_hf_evaluate(predictions=[found], references=[gold], **metric)["exact_match"])
    return METRICS[key]


def lm_eval_views(name: str, texts: list[str], golds: list[str]) -> dict[str, list[tuple[str, bool]]]:
    """(extracted, correct) by lm-eval's filters and metric."""
    from lm_eval.api.instance import Instance

    ensembles, _ = lm_eval_task(name)
    instances = [
        Instance(request_type="generate_until", doc={}, arguments=("", {}), idx=0, metadata=("t", i, 1), resps=[text])
        for i, text in enumerate(texts)
    ]
    out = {}
    for ensemble in ensembles:
        ensemble.apply(instances)
        found = [i.filtered_resps[ensemble.name] for i in instances]
        right = [lm_eval_equal(name, f, g) for f, g in zip(found, golds, strict=True)]
        out[ensemble.name] = list(zip(found, right, strict=True))
    return out


PIECES = [
    "#### ", "####", "#### $", "#### -", "#### \u2212", "###", " ", "\n", "\n\n", "Question: ", "Answer:", "**",
    "\\boxed{", "}", "$", "$$", ",", ".", ",,", "..", "-", "--", "\u2212", "\u00a0", "\u2009", "%", " apples",
    "<think>", "</think>", " dollars", "so ", "The answer is ", "=", "/", ":", "\0", "\r", "\u0130",
    "\u0661", "\U0001d7d8", "e3", "0", "[invalid]", "1,000", "18.00",
]  # fmt: skip


def make_text(rng: random.Random) -> str:
    def number() -> str:
        n = str(rng.choice([rng.randint(0, 9), rng.randint(10, 99), rng.randint(100, 10**7)]))
        form = rng.randrange(6)
        if form == 0:
            return f"{int(n):,}"
        if form == 1:
            return f"-{n}"
        if form == 2:
            return f"{n}.{rng.randint(0, 99)}"
        return f"${n}" if form == 3 else n

    parts = [rng.choice(PIECES) if rng.random() < 0.6 else number() for _ in range(rng.randint(0, 14))]
    return "".join(parts)


def assert_views_agree(texts: list[str], golds: list[str]) -> int:
    """Both filters of each task, text by text. Gives the number of right answers, so that a test can see some."""
    right = 0
    for name, pick in TASKS.items():
        theirs = lm_eval_views(name, texts, golds)
        for i, (text, gold) in enumerate(zip(texts, golds, strict=True)):
            strict, flexible = strict_view(text, gold, pick), flexible_view(text, gold)
            assert (strict.extracted, strict.correct) == theirs[STRICT][i], (name, text, gold)
            assert (flexible.extracted, flexible.correct) == theirs[FLEXIBLE][i], (name, text, gold)
            right += strict.correct + flexible.correct
    return right


def fuzzed(n: int, seed: int) -> tuple[list[str], list[str]]:
    rng = random.Random(seed)
    texts = [make_text(rng) for _ in range(n)]
    golds = []
    for text in texts:
        numbers = re.findall(r"-?[0-9][0-9,.]*", text)
        gold = rng.choice(numbers) if numbers and rng.random() < 0.7 else make_text(rng)
        golds.append(f"worked out\n#### {gold}" if rng.random() < 0.5 else gold)
    return texts, golds


def test_views_are_lm_evals_on_a_fuzzed_corpus() -> None:
    assert assert_views_agree(*fuzzed(5_000, seed=1)) > 2_000


@pytest.mark.slow
def test_views_are_lm_evals_on_100_000_fuzzed_texts() -> None:
    assert assert_views_agree(*fuzzed(100_000, seed=2)) > 40_000


@given(st.text(max_size=60), st.text(max_size=20))
@settings(max_examples=150, deadline=None)
def test_views_are_lm_evals_on_any_text(text: str, gold: str) -> None:
    assert_views_agree([text], [gold])


@needs_gsm8k
def test_views_are_lm_evals_on_the_gold_answers_of_gsm8k() -> None:
    golds = [row["answer"] for row in rows(GSM8K)]
    assert assert_views_agree(golds, golds) >= 6 * 1319 - 60  # flexible-extract misses a few of the golds itself


def test_views_are_lm_evals_on_the_gold_answers_of_gradeschool() -> None:
    golds = [row["answer"] for row in rows(GRADESCHOOL)]
    assert assert_views_agree(golds, golds) == 6 * len(golds)


# --- cases tagged scoring and reasoning


def test_c01_the_last_marker_counts_and_the_leftmost_is_shown_beside_it() -> None:
    one = sample("Example: #### 8. Now mine: 3*6 = 18. #### 18")
    assert one.extracted[STRICT] == "8." and one.scores[STRICT] == 0
    assert one.canonical and (one.canonical.value, one.canonical.correct) == ("18", True)
    assert one.canonical.disagreement == "recited example"
    assert sample(one.text, pick="last").canonical == replace(one.canonical, disagreement="")


def test_c02_both_sides_are_read_by_one_rule() -> None:
    assert canonical("Profit: #### $70,000", "70000").correct is True
    assert canonical("#### 540", " 540").correct is True
    assert canonical("#### 70000", "70,000").correct is True
    assert gold_number("She sells 3 and keeps 4, a whole paragraph.") is None


def test_c03_separators_belong_to_the_number() -> None:
    found = canonical("That makes a profit of $70,000", "70000")
    assert (found.value, found.raw_span, found.correct) == ("70000", "$70,000", True)
    assert [n.text for n in scan("1,234,567 or 1,23") if n] == ["1234567"]


def test_c04_punctuation_is_no_answer() -> None:
    one = sample("The total is 72 clips, altogether.", "72")
    assert one.canonical and one.canonical.correct is True
    for text in ("#### ,", "altogether, so.", ",", "$"):
        found = canonical(text, "")
        assert (found.bucket, found.value, found.correct) == (Bucket.NO_ANSWER, "", None)


def test_c05_a_miss_of_form_is_named() -> None:
    one = sample("**Answer: \\$18 per day.**")
    assert one.scores == {STRICT: 0.0, FLEXIBLE: 1.0}
    assert one.canonical and one.canonical.correct is True and one.canonical.disagreement == "marker missing"
    found = drift([one] * 3 + [sample("#### 18")])
    assert found and (found.strict, found.canonical, found.size) == (0.25, 1.0, 0.75)
    assert found.words == "marker missing 3"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#### 18", ""),
        ("so it is 18", "marker missing"),
        ("\\boxed{18}", "boxed"),
        ("#### **18**", "bold"),
        ("####18", "no blank"),
        ("####  18", "no blank"),
        ("#### \u20ac18", "currency"),
        ("#### $18", "currency"),
        ("#### \uff11\uff18", "full width"),
        ("#### +18", "sign"),
        ("#### 18.00", "decimals"),
        ("#### The total is 18", "unit"),
        ("#### 18 in 3 days", "trailing text"),
        ("#### 18 ...", "punctuation"),
        ("#### 18\nQuestion: next?\n#### 7", "run-on"),
        ("<think>5 #### 5</think>#### 18", "thinking"),
        ("#### 8, no, #### 18", "recited example"),
    ],
)
def test_c05_why_readings_disagree(text: str, reason: str) -> None:
    found = sample(text).canonical
    assert found is not None and found.correct is True and found.disagreement == reason


@pytest.mark.parametrize(
    ("text", "gold", "reason"),
    [
        ("#### \u221210", "-10", "sign"),
        ("#### 1 000", "1000", "separators"),
        ("#### 1e3", "1000", "exponent"),
        ("#### 3/6", "3", "fraction"),
        ("#### 3:00", "3", "clock time"),
    ],
)
def test_c05_why_readings_disagree_on_the_number_itself(text: str, gold: str, reason: str) -> None:
    found = sample(text, gold).canonical
    assert found is not None and found.disagreement == reason


def test_c06_no_marker_at_all_is_seen_as_such() -> None:
    found = drift([sample(f"it is {i}", str(i)) for i in range(20)])
    assert found and found.strict == 0 and found.flexible == 1 and found.reasons == {"marker missing": 20}


def test_c08_a_stop_before_the_answer_is_a_cut() -> None:
    cut = sample("1. Identify the ", stop_hit="Question")
    assert bucket_of(cut) is Bucket.STOP_CUT and cut.canonical and cut.canonical.correct is None
    assert bucket_of(sample("we have 3 and ", stop_hit="Question")) is Bucket.STOP_CUT, "a number is no answer yet"
    assert bucket_of(sample("#### 18\n\n", stop_hit="Question:")) is Bucket.ANSWERED
    assert bucket_of(sample("It is 18.", stop_hit="<|im_end|>")) is Bucket.ANSWERED
    assert bucket_of(sample("It is 18.", stop_hit="2")) is Bucket.ANSWERED, "the id of an end token"


@pytest.mark.parametrize("text", ["<think>Question", "<think>18, says the first line\n\n"])
def test_c08_a_stop_inside_the_thinking_is_a_cut_and_no_silent_model(text: str) -> None:
    assert bucket_of(sample(text, stop_hit="Question:")) is Bucket.STOP_CUT
    assert bucket_of(sample(text, stop_hit="<|im_end|>")) is Bucket.REASONING_ONLY, "the model ended it"
    assert bucket_of(sample(text + "</think>", stop_hit="Question:")) is Bucket.REASONING_ONLY, "it came to its end"


@pytest.mark.parametrize(
    ("text", "stop"), [("#### 1", ","), ("#### 1", "."), ("The answer is 5 ", "="), ("#### 3", ":")]
)
def test_c08_a_stop_that_may_have_cut_the_number_itself_leaves_no_answer(text: str, stop: str) -> None:
    found = sample(text, "18", stop_hit=stop).canonical
    assert found is not None and (found.bucket, found.correct) == (Bucket.STOP_CUT, None)
    for harmless in ("\n", "Question:", "</s>"):
        assert bucket_of(sample(text, "18", stop_hit=harmless)) is Bucket.ANSWERED
    assert bucket_of(sample(f"{text}\n", "18", stop_hit=stop)) is Bucket.ANSWERED, "the line had ended"


def test_c11_thinking_cut_by_the_limit_is_its_own_bucket() -> None:
    one = sample("<think>let me see, 18", finish_reason="length")
    assert bucket_of(one) is Bucket.TRUNCATED_IN_THINKING and one.text
    assert bucket_of(sample("<think>let me see, 18")) is Bucket.REASONING_ONLY
    assert bucket_of(sample("<think>18</think>\n")) is Bucket.REASONING_ONLY


def test_c12_a_text_cut_by_the_limit_is_truncated_not_wrong() -> None:
    assert bucket_of(sample("first 3 * 6 = 18 and then", finish_reason="length")) is Bucket.TRUNCATED
    assert bucket_of(sample("#### 1", finish_reason="length")) is Bucket.TRUNCATED, "the number may go on"
    assert bucket_of(sample("#### 18\nSo", finish_reason="length")) is Bucket.ANSWERED
    counts = bucket_counts([sample("#### 18"), sample("and", finish_reason="length"), sample("", tokens=3)])
    assert {b.value: n for b, n in counts.items() if n} == {"answered": 1, "truncated": 1, "empty": 1}


def test_c15_hidden_reasoning_is_never_graded() -> None:
    found = canonical("<think>so maybe 18? Let me check 20", "18")
    assert (found.correct, found.value) == (None, "")
    assert canonical("<think>18 #### 18</think>It is 20.", "18").correct is False
    assert visible("a < b, so 3").text == "a < b, so 3"
    assert visible("opened in the prompt 5</think>#### 18").text == "#### 18"


def test_c30_rows_are_grouped_by_document_and_filter() -> None:
    lines = [{"doc_id": i, "filter": name, "exact_match": 1.0} for i in range(3) for name in (STRICT, FLEXIBLE)]
    assert len(group_by_document(lines)) == 3
    with pytest.raises(EvalkitError, match="document 1 has two rows of filter strict-match"):
        group_by_document([*lines, lines[2]])
    with pytest.raises(EvalkitError, match="document 2 has no row of filter flexible-extract"):
        group_by_document(lines[:-1])


def test_c77_no_token_at_all_is_its_own_bucket() -> None:
    assert bucket_of(sample("", tokens=0)) is Bucket.ZERO_TOKENS
    assert bucket_of(sample(" \n", tokens=2)) is Bucket.EMPTY


@pytest.mark.parametrize(
    ("text", "ids", "kind"),
    [
        ("So we ha" + "8191 " * 80, (), "single token"),
        ("She has " + "so so " * 50, (), "single token"),
        ("Then " + "she adds 3 to it and " * 30, (), "loop"),
        ("The 4" + "".join(str(i * i) for i in range(60)), (), "digit flood"),
        ("anything", [5] * 10 + [8191] * 200, "single token"),
        ("a" * 400, (), "single token"),
    ],
)
def test_c78_a_text_that_broke_down_is_degenerate(text: str, ids: list[int], kind: str) -> None:
    assert degenerate(text, ids) == kind
    found = canonical(text, "18", finish_reason="length", token_ids=ids)
    assert (found.bucket, found.reason, found.correct) == (Bucket.DEGENERATE, kind, None)
    after = canonical(f"3 * 6 = 18\n#### 18\n{text}", "18", token_ids=ids)
    assert after.bucket is Bucket.ANSWERED and "degenerate" in after.notes


def test_c78_sound_texts_are_not_degenerate() -> None:
    texts = [row["answer"] for row in rows(GRADESCHOOL)] + ["| a |\n|" + "-" * 90 + "|\n", "=" * 300]
    assert [t for t in texts if degenerate(t, list(range(100)))] == []


@needs_gsm8k
def test_c78_gold_answers_are_not_degenerate() -> None:
    assert [row["answer"] for row in rows(GSM8K) if degenerate(row["answer"])] == []


def test_c83_a_timeout_is_a_bucket_and_in_no_denominator() -> None:
    lost = [sample("", scores={}, error=e, scored=False) for e in ("Timeout after 600 s", "timed out", "refused")]
    assert [bucket_of(s) for s in lost] == [Bucket.TIMEOUT, Bucket.TIMEOUT, Bucket.FAILED]
    found = drift([*lost, sample("#### 18")])
    assert found and found.n == 1


def test_c84_missing_answers_leave_a_range() -> None:
    right, wrong = sample("#### 18"), sample("#### 7")
    lost = sample("", scores={}, error="lost", scored=False)
    found = score_range([right] * 80 + [wrong] * 10 + [lost] * 10, STRICT, 100)
    assert (found.answered, found.worst, found.best) == (90, 0.80, 0.90)
    with pytest.raises(EvalkitError):
        score_range([right], STRICT, 0)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_c87_a_number_that_is_not_finite_is_refused_with_its_key(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"scores\.strict-match is no finite number"):
        read_json(f'{{"doc_id": 1, "scores": {{"strict-match": {name}}}}}')
    with pytest.raises(EvalkitError, match=r"a\[1\] is no finite number"):
        unpack_sample(f'{{"doc_id": 1, "a": [0, {name}]}}'.encode(), tmp_path)


canonicals = st.builds(
    CanonicalScore,
    value=st.sampled_from(["", "18", "1/3"]),
    raw_span=st.text(max_size=5),
    correct=st.sampled_from([None, True, False]),
    bucket=st.sampled_from(list(Bucket)),
    reason=st.text(max_size=5),
    notes=st.lists(st.text(max_size=5)).map(tuple),
    disagreement=st.text(max_size=5),
)


@given(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.none() | canonicals,
    st.dictionaries(st.text(max_size=5), st.sampled_from([0.0, 1.0, 0.25])),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_c88_what_is_stored_is_what_is_read(text: str, found: Any, scores: dict[str, float], forced: bool) -> None:
    step = StepRecord(k=3, accepted=2, accepted_trimmed=1, cut="stop", forced=forced)
    made = sample(text, scores=scores, forced=forced, steps=(step,), scored=False)
    made = replace(made, canonical=found)
    assert unpack_sample(pack_sample(made), Path("x"))[0] == made


def test_runs_stored_before_canonical_scores_can_be_read_and_scored() -> None:
    old = {"doc_id": 3, "gold": "#### 18", "text": "#### 18", "tokens": 4, "finish_reason": "stop",
           "scores": {"strict-match": 1.0, "flexible-extract": 1.0}}  # fmt: skip
    read, _ = unpack_sample(json.dumps(old).encode(), Path("x"))
    assert read.canonical is None
    (found,) = score_samples([read])
    assert found.correct is True and bucket_of(read) is Bucket.ANSWERED


@pytest.mark.parametrize(
    "text",
    [
        "9" * 50_000,
        "1," * 20_000,
        "\nQ: 3" * 3000,
        "<think>" * 1000,
        "\\boxed{" * 3000,
        "answer: " * 5000,
        "1 " * 20_000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    canonical(text, "18")
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("#### 3 * 6 = 18", "18", "marker"),
        ("#### 18 = 3 * 6", "18", "marker"),
        ("#### x = 18", "18", "marker"),
        ("#### 18, since x = 3", "18", "marker"),
        ("#### 18 apples because 6 = 6", "18", "marker"),
        ("#### The answer is 18", "18", "marker"),
        ("#### [18]", "18", "marker"),
        ("####\n\n18", "18", "marker"),
        ("#### - 10", "-10", "marker"),
        ("#### $\\boxed{18}$", "18", "marker"),
        ("#### Step 2: add\n8 + 2 = 10\nThe answer is 18 apples.", "18", "phrase"),
        ("**Final Answer:**\n\n$\\boxed{\\$1{,}000}$", "1000", "boxed"),
        ("Answer: She makes 9 * 2 = 18 dollars a day", "18", "phrase"),
        ("The answer is 18, not 20.", "18", "phrase"),
        ("The answer is **18**. Then 3 more.", "18", "phrase"),
    ],
)
def test_where_an_answer_is_read(text: str, value: str, reason: str) -> None:
    found = canonical(text, value)
    assert (found.value, found.reason, found.correct) == (value, reason, True)


def test_a_run_on_is_cut_only_after_an_answer() -> None:
    assert cut_run_on("Question: how many?\nAnswer: #### 18") == "Question: how many?\nAnswer: #### 18"
    assert cut_run_on("So 18.\nQuestion: and 7?") == "So 18.\n"
    assert cut_run_on("#### 18\n**Question 2:** 7") == "#### 18\n"
    assert cut_run_on("#### 18<|im_start|>user\n7") == "#### 18"
    assert cut_run_on("the Question: is 3") == "the Question: is 3"
    assert last_number("none here") is None
