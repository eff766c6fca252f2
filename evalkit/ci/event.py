"""GitHub's event payloads and API answers, read into what the rules ask for. Nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import nearest
from evalkit.errors import EvalkitError
from evalkit.runfile import read_given

FIX = "give a JSON file of GitHub's"

PULL_REQUEST_EVENTS = ("pull_request", "pull_request_target", "pull_request_review")
PLAIN_EVENTS = ("push", "merge_group", "schedule", "workflow_dispatch")  # heavy jobs run for each
KNOWN = (*PULL_REQUEST_EVENTS, *PLAIN_EVENTS)
MAX_FILES = 3000  # GitHub lists no more files of a pull request; with so many, what is missing is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One review of a pull request. `state` is in capitals: APPROVED, CHANGES_REQUESTED, COMMENTED, DISMISSED."""

    state: str
    association: str  # of its author with the repository: OWNER, MEMBER, COLLABORATOR, CONTRIBUTOR, NONE ...
    commit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened. The fields after `name` are of a pull request and empty for any other event."""

    name: str
    action: str = ""
    base: str = ""
    head_commit: str = ""
    fork: bool = False
    draft: bool = False
    closed: bool = False
    labels: tuple[str, ...] = ()
    label_added: str = ""  # by this very event
    review: Review | None = None  # of this very event

    @property
    def of_pull_request(self) -> bool:
        return self.name in PULL_REQUEST_EVENTS


def read_event(path: Path, name: str) -> Event:
    """The event in GitHub's payload file ($GITHUB_EVENT_PATH). `name` is $GITHUB_EVENT_NAME."""
    return event_of(name, read_given(path, FIX))


def event_of(name: str, payload: Any) -> Event:
    """The event of a payload. Raises EvalkitError where a pull request's payload lacks what the rules need."""
    if not name:
        raise EvalkitError("the event has no name", "give --event pull_request, push ... (or set GITHUB_EVENT_NAME)")
    if not isinstance(payload, Mapping):
        raise EvalkitError("the event is no JSON object", "give the file that $GITHUB_EVENT_PATH names")
    if name not in KNOWN:
        raise EvalkitError(f"the event {name!r} is none that starts jobs here",
                           f"{nearest(name, KNOWN)}use {', '.join(KNOWN)}")  # fmt: skip
    if name not in PULL_REQUEST_EVENTS:
        return Event(name=name, action=str(payload.get("action") or ""))
    try:
        pull = payload["pull_request"]
        head, base = pull["head"], pull["base"]
        # A fork that was deleted has no repository any more; it's still nobody of ours.
        fork = head["repo"] is None or _text(head["repo"], "full_name") != _text(base["repo"], "full_name")
        review = payload["review"] if name == "pull_request_review" else None
        return Event(
            name=name,
            action=_text(payload, "action"),
            base=_text(base, "ref"),
            head_commit=_text(head, "sha"),
            fork=fork,
            draft=_bool(pull, "draft"),
            closed=payload["action"] == "closed" or _text(pull, "state") == "closed",
            labels=tuple(_text(label, "name") for label in _list(pull, "labels")),
            label_added=_text(payload["label"], "name") if payload["action"] == "labeled" else "",
            review=_review(review) if review is not None else None,
        )
    except KeyError as e:
        raise EvalkitError(f"the {name} event lacks {e}", "give the whole payload ($GITHUB_EVENT_PATH)") from None
    except TypeError as e:
        what = str(e) if str(e).startswith("its ") else f"a part of it is of another kind ({e})"
        raise EvalkitError(
            f"the {name} event can't be read: {what}", "give GitHub's own ($GITHUB_EVENT_PATH)"
        ) from None


def read_reviews(path: Path) -> tuple[Review, ...]:
    """Reviews from the answer of GitHub's API (pulls/N/reviews), paged or not."""
    try:
        return tuple(_review(row) for row in _rows(read_given(path, FIX)))
    except (KeyError, TypeError) as e:
        raise EvalkitError(f"{path} is no list of reviews ({e})", "gh api --paginate --slurp .../reviews") from None


def read_files(path: Path) -> tuple[str, ...] | None:
    """Changed files from the answer of GitHub's API (pulls/N/files), old names of renamed ones included.

    None where the list is cut at GitHub's limit: then what else changed is unknown.
    """
    try:
        rows = _rows(read_given(path, FIX))
        named = [(_text(row, "filename"), row.get("previous_filename")) for row in rows]
    except (KeyError, TypeError, AttributeError) as e:
        raise EvalkitError(f"{path} is no list of files ({e})", "gh api --paginate --slurp .../files") from None
    return None if len(rows) >= MAX_FILES else tuple(str(name) for pair in named for name in pair if name)


def _review(row: Any) -> Review:
    return Review(
        state=_text(row, "state").upper(),
        association=_text(row, "author_association").upper(),
        commit=_text(row, "commit_id") if row["commit_id"] is not None else "",
    )


def _rows(values: Any) -> list[Any]:
    """A list of rows, or a list of such pages."""
    if not isinstance(values, list):
        raise TypeError("no list")
    return [row for page in values for row in (page if isinstance(page, list) else [page])]


def _text(values: Any, name: str) -> str:
    """A text of an object; "None" or "[]" made of something else would be compared as if it were one."""
    if not isinstance(values, Mapping):
        raise TypeError(f"its {name} is in {type(values).__name__}, expected an object")
    if not isinstance(values[name], str):
        raise TypeError(f"its {name} is {type(values[name]).__name__}, expected text")
    return values[name]


def _list(values: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(values[name], list):
        raise TypeError(f"its {name} is {type(values[name]).__name__}, expected a list")
    return values[name]


def _bool(values: Mapping[str, Any], name: str) -> bool:
    if not isinstance(values[name], bool):
        raise TypeError(f"its {name} is {type(values[name]).__name__}, expected true or false")
    return values[name]
