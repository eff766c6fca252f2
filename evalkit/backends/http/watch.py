"""Reads a server's counters before, during and after the work."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace

from evalkit.backends.http.client import Client
from evalkit.errors import EvalkitError
from evalkit.servers.counters import Snapshot
from evalkit.servers.json_pages import TrtIterations, atom_stats, sglang_info
from evalkit.servers.profile import Profile
from evalkit.servers.prometheus import read_page

EVERY = 2.0  # seconds between two reads; doubled each time there are MOST of them
MOST = 400
SETTLE = 0.3  # between two reads that must agree
FRESH = 20.0  # that a snapshot which is pushed from time to time is waited for


class Source:
    """Where a server's counts are. `name` is what the first good read found, "" as long as nothing was."""

    def __init__(self, client: Client, profile: Profile) -> None:
        self._client, self._profile = client, profile
        self._iterations = TrtIterations()
        self.name = ""
        self.problem = ""

    async def read(self) -> Snapshot | None:
        """The counts now, or None."""
        if self._profile.page is not None:
            status, text = await self._client.page("/metrics")
            if status == 200:
                try:
                    found = read_page(text, self._profile.page, at=time.monotonic())
                except EvalkitError as e:
                    found, self.problem = None, e.what
                if found is not None and (found.has("accepted") or not self._profile.json_page):
                    self.name = f"{self._profile.name}'s /metrics"
                    return found
        if self._profile.json_page:
            return await self._json(self._profile.json_page)
        return None

    async def _json(self, path: str) -> Snapshot | None:
        status, text = await self._client.page(path)
        if status == 404 and path == "/server_info":
            status, text = await self._client.page("/get_server_info")
        try:
            page = json.loads(text) if status == 200 else None
        except ValueError:
            return None
        found, now = None, time.monotonic()
        if isinstance(page, list) and path == "/metrics":
            found = self._iterations.take(page, at=now)
        elif isinstance(page, dict) and path == "/server_info":
            found = sglang_info(page, at=now)
        elif isinstance(page, dict):
            found = atom_stats(page, at=now)
        if found is not None:
            self.name = f"{self._profile.name}'s {path}"
        return found


class Watch:
    """Snapshots of one piece of work. The first is taken by `begin`, the last by `end`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.snapshots: list[Snapshot] = []
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        first = await self._settled(FRESH)
        if first is not None:
            self.snapshots.append(first)
        self._task = asyncio.create_task(self._keep_reading())

    async def first(self) -> None:
        """One read alone, where no acceptance is measured and only a change is looked for."""
        if (found := await self._source.read()) is not None:
            self.snapshots.append(found)

    async def last(self, *, patient: bool) -> None:
        """The read that `first` is held against; newer than the work where the server counts drafts at all."""
        if not self.snapshots:
            return
        patient = patient and self.snapshots[0].has("accepted")
        found = await (self._settled(FRESH) if patient else self._source.read())
        if found is not None:
            self.snapshots.append(found)

    async def end(self, *, patient: bool = True) -> None:
        """Waits until the counters stand still and, where they are pushed, are newer than the work."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        last = await self._settled(FRESH) if patient else await self._source.read()
        if last is not None:
            self.snapshots.append(last)
        elif self.snapshots:  # the server is gone: what it counted since the last read is lost
            words = "the counters could not be read at the end: what was counted last is missing"
            self.snapshots[-1] = replace(self.snapshots[-1], problems=(*self.snapshots[-1].problems, words))

    async def _keep_reading(self) -> None:
        every = EVERY
        while True:
            await asyncio.sleep(every)
            found = await self._source.read()
            if found is not None and self.snapshots:
                self.snapshots.append(found)
                every = every * 2 if len(self.snapshots) % MOST == 0 else every

    async def _settled(self, longest: float) -> Snapshot | None:
        """Two reads alike; where the server says when it counted, a count that is newer than the first read."""
        before = await self._source.read()
        if before is None:
            return None
        end = time.monotonic() + longest
        while True:
            await asyncio.sleep(SETTLE)
            now = await self._source.read()
            if now is None:
                return before
            fresh = before.refreshed is None or (now.refreshed or 0.0) > before.refreshed
            if fresh and (before.refreshed is not None or now.ranks == before.ranks):
                return now
            if time.monotonic() > end:
                words = "was not renewed" if not fresh else "did not stand still"
                return replace(now, problems=(*now.problems, f"the counters' page {words} in {longest:.0f} s"))
            if before.refreshed is None:
                before = now
