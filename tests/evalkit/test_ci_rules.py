"""Which jobs run for which event: tables over payloads as GitHub sends them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalkit.ci.event import Review, event_of, read_files
from evalkit.ci.rules import FAMILIES, LEVELS, PRE_CHECK, REASONS, only_ignored, plan
from evalkit.cli import main
from evalkit.errors import EvalkitError

HEAD = "c" * 40
CODE, DOCS = ("evalkit/gate/length.py",), ("README.md", "docs/ci.md", "recipes/deep/x.md", "LICENSE")
APPROVED = Review(state="APPROVED", association="MEMBER", commit="a" * 40)


def payload(action: str = "synchronize", labels: tuple[str, ...] = (), fork: bool = False, **more: Any) -> dict:
    """A pull request's payload, cut to what matters. A review's state comes in small letters, the API's in capitals."""
    pull = {
        "number": 7, "state": "closed" if action == "closed" else "open", "draft": more.pop("draft", False),
        "labels": [{"name": name, "color": "fff"} for name in labels],
        "head": {"ref": "topic", "sha": HEAD, "repo": {"full_name": "stranger/atom" if fork else "rocm/atom"}},
        "base": {"ref": more.pop("base", "main"), "repo": {"full_name": "rocm/atom"}},
    }  # fmt: skip
    return {"action": action, "pull_request": pull, "repository": {"full_name": "rocm/atom"}, **more}


def review(state: str = "approved", association: str = "MEMBER", commit: str = HEAD) -> dict:
    return {"review": {"state": state, "author_association": association, "commit_id": commit}}


def decided(name: str, values: dict, **known: Any) -> dict[str, tuple[bool, str]]:
    known = {"reviews": (), "files": CODE} | known
    found = plan(event_of(name, values), **known)
    assert [d.job for d in found.decisions] == [PRE_CHECK, *FAMILIES] and all(
        d.reason in REASONS for d in found.decisions
    )
    return {d.job: (d.run, d.reason) for d in found.decisions}


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("push", ("pr", "main")),
        ("schedule", ("pr", "main", "nightly")),
        ("workflow_dispatch", ("pr", "main", "nightly")),
    ],
)
def test_what_is_no_pull_request_runs_everything(name: str, levels: tuple[str, ...]) -> None:
    found = decided(name, {"ref": "refs/heads/main"})
    assert all(run for run, _ in found.values()) and found["atom"][1] == "not-a-pull-request"
    assert plan(event_of(name, {})).levels == levels
    assert plan(event_of("pull_request", payload())).levels == ("pr",) and "pull_request" not in LEVELS


@pytest.mark.parametrize(
    ("labels", "runs"),
    [
        ((), ()),
        (("ci:full",), FAMILIES),
        (("ci:atom",), ("atom",)),
        (("ci:vllm", "ci:sglang"), ("vllm", "sglang")),
        (("ci:fullest", "CI:FULL", "ci", "atom", "documentation"), ()),
    ],
)
def test_a_label_starts_its_family_and_full_all(labels: tuple[str, ...], runs: tuple[str, ...]) -> None:
    found = decided("pull_request", payload(labels=labels))
    assert tuple(job for job in FAMILIES if found[job][0]) == runs and found[PRE_CHECK][0]
    assert all(found[job] == (job in runs, "label-present" if job in runs else "not-approved") for job in FAMILIES)


ROWS = [
    # what, event, payload, what is known besides, and the decision on atom
    ("label on a draft", "pull_request", payload(labels=("ci:atom",), draft=True), {}, (True, "label-present")),
    ("label, documents only", "pull_request", payload(labels=("ci:full",)), {"files": DOCS}, (True, "label-present")),
    ("label added later", "pull_request", payload("labeled", ("ci:atom",), label={"name": "ci:atom"}), {},
     (True, "label-present")),
    ("label taken off", "pull_request", payload("unlabeled", label={"name": "ci:atom"}), {}, (False, "not-approved")),
    ("label, nothing known", "pull_request", payload(labels=("ci:full",)), {"files": None, "reviews": None},
     (True, "label-present")),
    ("label, base elsewhere", "pull_request", payload(labels=("ci:full",), base="release"), {},
     (False, "base-not-main")),
    ("label, closed", "pull_request", payload("closed", ("ci:full",)), {}, (False, "closed")),
    ("draft", "pull_request", payload(draft=True), {}, (False, "draft-pull-request")),
    ("draft, approved", "pull_request", payload(draft=True), {"reviews": (APPROVED,)}, (False, "draft-pull-request")),
    ("ready after approval", "pull_request", payload("ready_for_review"), {"reviews": (APPROVED,)},
     (True, "approved-history")),
    ("nothing", "pull_request", payload("opened"), {}, (False, "not-approved")),
    ("documents, approved", "pull_request", payload(), {"files": DOCS, "reviews": (APPROVED,)},
     (False, "ignored-paths-only")),
    ("files unknown", "pull_request", payload(), {"files": None, "reviews": (APPROVED,)}, (False, "files-unknown")),
    ("reviews unknown", "pull_request", payload(), {"reviews": None}, (False, "reviews-unknown")),
    ("approved before the last push", "pull_request", payload(), {"reviews": (APPROVED,)}, (True, "approved-history")),
    ("approved once, dismissed", "pull_request", payload(),
     {"reviews": (Review(state="DISMISSED", association="OWNER"),)}, (True, "approved-history")),
    ("changes requested", "pull_request", payload(),
     {"reviews": (Review(state="CHANGES_REQUESTED", association="OWNER"),)}, (False, "not-approved")),
    ("approved by a stranger", "pull_request", payload(),
     {"reviews": (Review(state="APPROVED", association="CONTRIBUTOR"), Review(state="APPROVED", association="NONE"))},
     (False, "not-approved")),
    ("approval arrives", "pull_request_review", payload("submitted", **review()), {}, (True, "approved-history")),
    ("approval arrives, history unknown", "pull_request_review", payload("submitted", **review()), {"reviews": None},
     (True, "approved-history")),
    ("a stranger's approval arrives", "pull_request_review", payload("submitted", **review(association="NONE")),
     {"reviews": (APPROVED,)}, (False, "review-not-approved")),
    ("a comment arrives", "pull_request_review", payload("submitted", **review("commented")),
     {"reviews": (APPROVED,)}, (False, "review-not-approved")),
    ("a review is edited", "pull_request_review", payload("edited", **review()), {}, (False, "review-not-approved")),
    ("a review is dismissed", "pull_request_review", payload("dismissed", **review("dismissed")), {},
     (False, "review-not-approved")),
    ("an approval of a draft", "pull_request_review", payload("submitted", draft=True, **review()), {},
     (False, "draft-pull-request")),
    ("fork, label set now", "pull_request", payload("labeled", ("ci:atom",), True, label={"name": "ci:atom"}), {},
     (True, "label-present")),
    ("fork, pushed after the label", "pull_request", payload("synchronize", ("ci:atom",), True), {},
     (False, "label-before-push")),
    ("fork, another label set", "pull_request", payload("labeled", ("ci:atom", "x"), True, label={"name": "x"}), {},
     (False, "label-before-push")),
    ("fork, another family's label set", "pull_request",
     payload("labeled", ("ci:atom", "ci:vllm"), True, label={"name": "ci:vllm"}), {}, (False, "label-before-push")),
    ("fork, approved before the push", "pull_request", payload(fork=True), {"reviews": (APPROVED,)},
     (False, "not-approved")),
    ("fork, this commit approved", "pull_request", payload(fork=True),
     {"reviews": (Review(state="APPROVED", association="MEMBER", commit=HEAD),)}, (True, "approved-head")),
    ("fork, approval dismissed", "pull_request", payload(fork=True),
     {"reviews": (Review(state="DISMISSED", association="MEMBER", commit=HEAD),)}, (False, "not-approved")),
    ("fork, approval of this commit arrives", "pull_request_review", payload("submitted", fork=True, **review()), {},
     (True, "approved-head")),
    ("fork, approval of an older commit arrives", "pull_request_review",
     payload("submitted", fork=True, **review(commit="a" * 40)), {}, (False, "review-not-approved")),
    ("pull_request_target is a pull request", "pull_request_target", payload(), {}, (False, "not-approved")),
]  # fmt: skip


@pytest.mark.parametrize(("what", "name", "values", "known", "atom"), ROWS, ids=[row[0] for row in ROWS])
def test_rules(what: str, name: str, values: dict, known: dict, atom: tuple[bool, str]) -> None:
    found = decided(name, values, **known)
    assert found["atom"] == atom
    assert found[PRE_CHECK][0] or not any(found[family][0] for family in FAMILIES), "heavy jobs wait for the light one"


@pytest.mark.parametrize(
    ("values", "files", "light"),
    [
        (payload(), CODE, (True, "light")),
        (payload(draft=True), CODE, (True, "light")),
        (payload(fork=True), CODE, (True, "light")),
        (payload(base="release"), None, (True, "light")),
        (payload(), DOCS, (False, "ignored-paths-only")),
        (payload(labels=("ci:atom",)), DOCS, (True, "needed")),
        (payload("closed"), CODE, (False, "closed")),
    ],
)
def test_the_light_job(values: dict, files: tuple[str, ...] | None, light: tuple[bool, str]) -> None:
    assert decided("pull_request", values, files=files)[PRE_CHECK] == light


def test_documents_are_known_by_their_path() -> None:
    assert only_ignored(DOCS) and only_ignored(("docs/a/b.py",))
    for name in ("docs.py", "README.md.py", "LICENSES/x", "evalkit/docs/x.py", "Makefile"):
        assert not only_ignored((*DOCS, name)), name
    assert not only_ignored(())


@pytest.mark.parametrize("gone", ["action", "pull_request", "draft", "labels", "head", "base", "state"])
def test_a_payload_that_lacks_something_is_an_error_not_a_decision(gone: str) -> None:
    values = payload()
    (values if gone in values else values["pull_request"]).pop(gone)
    with pytest.raises(EvalkitError, match=f"lacks.*{gone}"):
        event_of("pull_request", values)
    with pytest.raises(EvalkitError, match="lacks"):
        event_of("pull_request_review", payload("submitted"))
    values = payload()
    values["pull_request"]["draft"] = "false"
    with pytest.raises(EvalkitError, match="draft is str, expected true or false"):
        event_of("pull_request", values)


def test_a_deleted_fork_is_a_fork() -> None:
    values = payload(labels=("ci:atom",))
    values["pull_request"]["head"]["repo"] = None
    assert decided("pull_request", values)["atom"] == (False, "label-before-push")


def test_the_list_of_files_knows_old_names_pages_and_its_own_limit(tmp_path: Path) -> None:
    path = tmp_path / "files.json"
    path.write_text(json.dumps([[{"filename": "docs/a.md"}], [{"filename": "docs/b.md", "previous_filename": "b.py"}]]))
    assert read_files(path) == ("docs/a.md", "docs/b.md", "b.py")  # code that became a document is a change of code
    path.write_text(json.dumps([{"filename": f"docs/{i}.md"} for i in range(3000)]))
    assert read_files(path) is None


def test_plan_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    event, reviews, files, out = (tmp_path / n for n in ("event.json", "reviews.json", "files.json", "out"))
    event.write_text(json.dumps(payload(title="$(touch x)\natom=true")))
    reviews.write_text(json.dumps([{"state": "APPROVED", "author_association": "OWNER", "commit_id": HEAD}]))
    files.write_text(json.dumps([{"filename": "engine/verify.py"}]))
    monkeypatch.delenv("GITHUB_EVENT_NAME", raising=False)
    words = ["ci", "plan", str(event), "--reviews", str(reviews), "--files", str(files), "--output", str(out)]
    assert main(words) == 2 and "the event has no name" in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_EVENT_NAME", "pull_request")
    assert main(words) == 0
    assert "atom       run  approved-history: a maintainer approved it" in capsys.readouterr().out
    lines = out.read_text().splitlines()
    assert 'families=["atom", "vllm", "sglang"]' in lines and 'levels=["pr"]' in lines
    assert "pre-check=true" in lines and "atom-reason=approved-history" in lines and len(lines) == 10
    for broken, said in [("{", "is not JSON"), ("[]", "no JSON object"), ("{}", "lacks")]:
        event.write_text(broken)
        assert main(words) == 2 and said in capsys.readouterr().err
    event.write_text(json.dumps(payload()))
    reviews.write_text('{"message": "Not Found"}')
    assert main(words) == 2 and "no list of reviews" in capsys.readouterr().err


def test_other_families_have_their_own_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps(payload(labels=("ci:engine",))))
    words = ["ci", "plan", str(event), "--event", "pull_request"]
    assert main([*words, "--family", "engine", "--family", "atom"]) == 0
    out = capsys.readouterr().out
    assert "engine     run  label-present" in out and "atom       no" in out and "vllm" not in out
    for bad in (["a\nb=true"], ["Engine"], ["x", "x"]):
        assert main([*words, *(w for name in bad for w in ("--family", name))]) == 2
