"""Which jobs an event starts, and why. Pure: labels, approvals and drafts in, decisions out.

Heavy jobs (ATOM, vLLM, SGLang on accelerators) cost hours, so a pull request gets them by a label or by an approval.
The order is that of ATOM's gate; the first rule that speaks decides:
  not a pull request: run / base is not main: no / a review that approves nothing: no / closed: no / label: run, also a
  draft and documents only / draft: no / documents only: no / approved: run / else no.
What is unknown (files, reviews) never starts a heavy job, and never stops the light one.

Two rules are stricter than ATOM's. Anybody can approve a public pull request: only reviews of owners, members and
collaborators count. And a fork's author can push after a label or an approval was given: for a fork the label counts
at the moment when it is set, the approval for the commit that was looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from evalkit.ci.event import Event, Review

PRE_CHECK = "pre-check"
FAMILIES = ("atom", "vllm", "sglang")  # each with its label ci:NAME; a caller may name others
FULL = "ci:full"
BASE = "main"
MAINTAINERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
ONCE_APPROVED = frozenset({"APPROVED", "DISMISSED"})  # a dismissed review was given once: history, as ATOM counts it
IGNORED = ("*.md", "docs/*", "LICENSE")  # `*` crosses folders: any file of that ending, all below docs/
LEVELS = {"push": ("pr", "main"), "merge_group": ("pr", "main"), "schedule": ("pr", "main", "nightly"),
          "workflow_dispatch": ("pr", "main", "nightly")}  # fmt: skip

REASONS = {
    "not-a-pull-request": "it is no pull request",
    "base-not-main": f"its base is not {BASE}",
    "review-not-approved": "the review approves nothing, or not as a maintainer's",
    "closed": "it is closed",
    "label-present": "it has the label",
    "label-before-push": "the label was set before this: for a fork it counts when it is set; take it off and set it",
    "draft-pull-request": "it is a draft without the label",
    "ignored-paths-only": "only documents changed",
    "files-unknown": "what changed is not known",
    "reviews-unknown": "its reviews are not known",
    "approved-history": "a maintainer approved it",
    "approved-head": "a maintainer approved this commit of the fork",
    "not-approved": "it has neither the label nor an approval that counts",
    "light": "light jobs run for every open pull request, push and day",
    "needed": "a heavy job waits for it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether one job runs; `reason` is a key of REASONS."""

    job: str
    run: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an event starts. `levels` are the catalogue's test levels that its heavy jobs take."""

    decisions: tuple[Decision, ...]
    levels: tuple[str, ...]

    @property
    def families(self) -> tuple[str, ...]:
        """The heavy jobs that run."""
        return tuple(d.job for d in self.decisions if d.run and d.job != PRE_CHECK)


def plan(
    event: Event,
    *,
    reviews: Sequence[Review] | None = None,
    files: Sequence[str] | None = None,
    families: Sequence[str] = FAMILIES,
) -> Plan:
    """The jobs of an event. `reviews` and `files` are the pull request's, None where they could not be asked for."""
    heavy = [_heavy(event, family, reviews, files) for family in families]
    light = _light(event, files)
    if not light.run and any(d.run for d in heavy):
        light = Decision(job=PRE_CHECK, run=True, reason="needed")
    return Plan(decisions=(light, *heavy), levels=LEVELS.get(event.name, ("pr",)))


def only_ignored(files: Sequence[str]) -> bool:
    """Whether nothing but documents changed. No file at all is no such change."""
    return bool(files) and all(any(fnmatchcase(name, pattern) for pattern in IGNORED) for name in files)


def counts_for(review: Review, event: Event) -> bool:
    """Whether a review is an approval that counts."""
    if review.association not in MAINTAINERS:
        return False
    if event.fork:
        return review.state == "APPROVED" and bool(review.commit) and review.commit == event.head_commit
    return review.state in ONCE_APPROVED


def _light(event: Event, files: Sequence[str] | None) -> Decision:
    if event.closed:
        return Decision(job=PRE_CHECK, run=False, reason="closed")
    if event.of_pull_request and files is not None and only_ignored(files):
        return Decision(job=PRE_CHECK, run=False, reason="ignored-paths-only")
    return Decision(job=PRE_CHECK, run=True, reason="light")


def _heavy(event: Event, family: str, reviews: Sequence[Review] | None, files: Sequence[str] | None) -> Decision:
    run, reason = _rule(event, {FULL, f"ci:{family}"}, reviews, files)
    return Decision(job=family, run=run, reason=reason)


def _rule(
    event: Event, labels: set[str], reviews: Sequence[Review] | None, files: Sequence[str] | None
) -> tuple[bool, str]:
    if not event.of_pull_request:
        return True, "not-a-pull-request"
    if event.base != BASE:
        return False, "base-not-main"
    if event.name == "pull_request_review" and not _approves(event):
        return False, "review-not-approved"
    if event.closed:
        return False, "closed"
    labelled = bool(labels & set(event.labels))
    if labelled and (not event.fork or event.label_added in labels):
        return True, "label-present"
    if event.draft:
        return False, "draft-pull-request"
    if files is None:
        return False, "files-unknown"
    if only_ignored(files):
        return False, "ignored-paths-only"
    known = [*(reviews or ()), *((event.review,) if event.review else ())]
    if any(counts_for(review, event) for review in known):
        return True, "approved-head" if event.fork else "approved-history"
    if labelled:
        return False, "label-before-push"
    return False, "reviews-unknown" if reviews is None else "not-approved"


def _approves(event: Event) -> bool:
    """Whether the review event itself is an approval that counts."""
    review = event.review
    return (
        event.action == "submitted" and review is not None and review.state == "APPROVED" and counts_for(review, event)
    )
