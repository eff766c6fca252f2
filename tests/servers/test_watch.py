"""The counters around a piece of work, where the server does not stay until its end."""

from __future__ import annotations

import asyncio
from typing import cast

from evalkit.backends.http import watch
from evalkit.backends.http.watch import Source, Watch
from evalkit.servers.counters import Sent, Snapshot, read


class Pages:
    """A source that gives these snapshots, and then none any more."""

    def __init__(self, *pages):
        self.pages = list(pages)

    async def read(self):
        return self.pages.pop(0) if self.pages else None


def page(at, steps):
    return Snapshot(at=at, ranks={"": {"steps": steps, "accepted": 2 * steps, "drafts": 4 * steps}})


def watched(monkeypatch, *pages):
    """The Reading of work during which the server gave these pages."""
    monkeypatch.setattr(watch, "EVERY", 0.01)
    monkeypatch.setattr(watch, "SETTLE", 0.0)

    async def work():
        found = Watch(cast(Source, Pages(*pages)))
        await found.begin()
        await asyncio.sleep(0.2)
        await found.end()
        return found.snapshots

    return read(asyncio.run(work()), k=4, source="s", sent=Sent(requests=9, output_tokens=200),
                always_drafts=False)  # fmt: skip


def test_a_server_that_is_gone_at_the_end_leaves_counts_that_are_no_evidence(monkeypatch):
    gone = watched(monkeypatch, page(0, 0), page(0, 0), page(1, 30), page(2, 60))
    assert gone is not None and gone.steps == 60
    assert gone.problems == ("the counters could not be read at the end: what was counted last is missing",)
    stays = watched(monkeypatch, *[page(0, 0)] * 2, *[page(1, 30)] * 400)
    assert stays is not None and stays.steps == 30 and stays.problems == ()
