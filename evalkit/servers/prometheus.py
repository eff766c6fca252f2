"""A Prometheus page read into a Snapshot. The text is parsed by prometheus_client, never by splitting it.

A server of several engines or ranks has one series a label set: each is kept apart (a reset or a silent rank is only
seen there) and summed later. `_created` samples are times, not counts: prometheus_client knows them by name, and no
map asks for one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from evalkit.errors import EvalkitError
from evalkit.servers.counters import HISTOGRAM, SURVIVAL, Snapshot

# Labels that tell nothing of who counted: every series of one engine shares what is left.
NOT_A_RANK = ("model_name", "model", "finished_reason", "finish_reason", "le", "quantile", "source", "reason")
COUNTED_FIELDS = ("steps", "accepted", "drafts", "requests", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMap:
    """Names of the samples of one engine's page; "" where it has none.

    `positions` is a series by `position_label`: `survival` counts steps that kept a draft at position 0, 1, ...;
    `histogram` counts steps that kept exactly 0, 1, ... drafts, and its sum is then the number of steps.
    """

    steps: str = ""
    accepted: str = ""
    drafts: str = ""
    positions: str = ""
    position_label: str = "position"
    position_kind: str = SURVIVAL
    requests: str = ""
    prompt_tokens: str = ""
    output_tokens: str = ""
    refreshed: str = ""
    available: str = ""  # a gauge that is 0 as long as there is no snapshot


def parse(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(sample name, labels, value) of a page. Raises EvalkitError for a text that is no such page."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, dict(sample.labels), float(sample.value)
    except (ValueError, KeyError, IndexError) as e:
        raise EvalkitError(f"the metrics page can't be read ({type(e).__name__}: {e})", "look at /metrics") from None


def read_page(text: str, page: PageMap, *, at: float) -> Snapshot | None:
    """The counts on a page, or None where it has none of this engine's. A NaN or a negative count is a problem."""
    ranks: dict[str, dict[str, float]] = {}
    problems: dict[str, None] = {}
    refreshed = started = None
    wanted = {getattr(page, field): field for field in COUNTED_FIELDS}
    wanted.pop("", None)
    for name, labels, value in parse(text):
        if name == page.refreshed:
            refreshed = value if math.isfinite(value) else None
        elif name == "process_start_time_seconds":
            started = value if math.isfinite(value) else None
        elif name == page.available and value == 0:
            return None
        field = wanted.get(name)
        if name == page.positions:
            field = f"{page.position_kind}:{labels.get(page.position_label)}"
        if field is None:
            continue
        if not math.isfinite(value) or value < 0:
            problems[f"{name} is {value}"] = None
            continue
        rank = ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in (*NOT_A_RANK, page.position_label))
        mine = ranks.setdefault(rank, {})
        mine[field] = mine.get(field, 0.0) + value
    if not ranks and not problems:
        return None
    for mine in ranks.values():
        if page.position_kind == HISTOGRAM and not page.steps and any(f.startswith(HISTOGRAM) for f in mine):
            mine["steps"] = sum(v for f, v in mine.items() if f.startswith(HISTOGRAM))
    return Snapshot(at=at, ranks=ranks, refreshed=refreshed, started=started, problems=tuple(problems))
