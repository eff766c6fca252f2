"""Who owns which KV page: reference counts, one sequence's page table, and reuse of common prefixes.

Standard library only: the scheduler uses this and touches no tensor. A page holds the K and V of
page_size tokens for all layers, the draft's too, so a hit restores both.

A full page is published once all its tokens are committed and computed, under a hash chained over the
tokens before it. A published page is read-only: any number of sequences may hold it. When nobody
holds it, it stays in a least-recently-used list until its memory is needed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b


class OutOfPages(Exception):
    """No page is free or evictable. Internal: the scheduler preempts a sequence and tries again."""


@dataclass(slots=True)
class CacheStats:
    """Prefix cache counts since the start: tokens looked up, tokens found, pages evicted."""

    queries: int = 0
    hits: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class _Published:
    digest: bytes
    tokens: tuple[int, ...]


def chain_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Digest of a page: its parent's digest (empty for the first page), then its token ids as int64."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class PagePool:
    """Pages 0..num_pages-1, each free, held (by `refs` sequences) or cached (published, held by nobody)."""

    def __init__(self, num_pages: int, page_size: int, prefix_cache: bool = True) -> None:
        self.num_pages, self.page_size, self.prefix_cache = num_pages, page_size, prefix_cache
        self.stats = CacheStats()
        self._refs = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack; low pages first
        self._cached: OrderedDict[int, None] = OrderedDict()  # published and unheld, oldest first
        self._published: dict[int, _Published] = {}
        self._by_digest: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Pages that `allocate` could give now: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def in_use(self) -> int:
        """Pages held by at least one sequence; 0 when every request has finished."""
        return self.num_pages - self.available

    @property
    def cached(self) -> int:
        return len(self._cached)

    def refs(self, page: int) -> int:
        return self._refs[page]

    def pages_for(self, length: int) -> int:
        """Pages that cover `length` tokens."""
        return -(-length // self.page_size)

    def allocate(self, n: int) -> list[int]:
        """n pages held once, of unknown content. Raises OutOfPages, changing nothing, if there are not n."""
        if n > self.available:
            raise OutOfPages(f"{n} pages wanted, {self.available} available of {self.num_pages}")
        pages = [self._free.pop() if self._free else self._evict() for _ in range(n)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Drop one hold on each page. Later pages of a prefix grow old, and are evicted, before earlier ones."""
        for page in reversed(pages):
            if self._refs[page] < 1:
                raise ValueError(f"page {page} is released but not held")
            self._refs[page] -= 1
            if self._refs[page] == 0:
                if page in self._published:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def lookup(self, tokens: Sequence[int]) -> list[int]:
        """Pages of the longest published prefix of `tokens`, each held once more; its tokens are compared too.

        The page of the last token is never among them, so at least one token is left to compute.
        """
        if not self.prefix_cache:
            return []
        found: list[int] = []
        digest = b""
        for i in range((len(tokens) - 1) // self.page_size):
            part = tuple(tokens[i * self.page_size : (i + 1) * self.page_size])
            digest = chain_hash(digest, part)
            page = self._by_digest.get(digest)
            if page is None or self._published[page].tokens != part:
                break
            found.append(page)
        for page in found:
            self._cached.pop(page, None)
            self._refs[page] += 1
        return found

    def publish(self, page: int, parent: bytes, tokens: Sequence[int]) -> bytes:
        """Offer a held, full page for reuse; its digest, the parent of the next page.

        Where another page already has this content, that one stays the published one.
        """
        if len(tokens) != self.page_size or self._refs[page] < 1:
            raise ValueError(f"page {page} is not a full, held page: {len(tokens)} tokens, {self._refs[page]} holds")
        digest = chain_hash(parent, tokens)
        if self.prefix_cache and page not in self._published and digest not in self._by_digest:
            self._published[page] = _Published(digest, tuple(tokens))
            self._by_digest[digest] = page
        return digest

    def drop_cached(self) -> None:
        """Free every cached page, for a cold start; pages in use stay published. Not counted as evictions."""
        for page in self._cached:
            del self._by_digest[self._published.pop(page).digest]
        self._free.extend(self._cached)
        self._cached.clear()

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        del self._by_digest[self._published.pop(page).digest]
        self.stats.evictions += 1
        return page


class PageTable:
    """The pages of one sequence, in order. Call `reuse` first if at all, and `release` at the end."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.pages: list[int] = []
        self._digests: list[bytes] = []  # of the leading pages that are published or reused

    @property
    def sealed(self) -> int:
        """Leading tokens in published or reused pages: their slots are read-only."""
        return len(self._digests) * self.pool.page_size

    def reuse(self, tokens: Sequence[int], room: int = 0) -> int:
        """Admit a sequence: take the cached pages of a prefix of `tokens`, and room for `room` tokens in all.

        Returns how many tokens need not be computed (< len(tokens)). `tokens` are all that the sequence
        has: its prompt, and after a preemption what it generated too. Raises OutOfPages where there is no
        room; nothing is then held or counted.
        """
        if self.pages:
            raise ValueError("reuse of a prefix comes before any page is taken")
        pool, size = self.pool, self.pool.page_size
        self.pages = pool.lookup(tokens)
        try:
            cached = len(self.pages)
            self.grow(room)
        except OutOfPages:
            self.release()
            raise
        for i in range(cached):
            self._digests.append(chain_hash(self._parent, tokens[i * size : (i + 1) * size]))
        if pool.prefix_cache:
            pool.stats.queries += len(tokens)
            pool.stats.hits += cached * size
        return cached * size

    def grow(self, length: int) -> None:
        """Make room for `length` tokens in all. Raises OutOfPages, changing nothing, if pages run out."""
        missing = self.pool.pages_for(length) - len(self.pages)
        if missing > 0:
            self.pages += self.pool.allocate(missing)

    def slots(self, positions: Iterable[int]) -> list[int]:
        """Slots to write these positions to; `grow` must cover them. Raises ValueError for a read-only one."""
        size, sealed = self.pool.page_size, self.sealed
        out = []
        for p in positions:
            if p < sealed:
                raise ValueError(f"position {p} is in a shared page; the first {sealed} tokens are read-only")
            out.append(self.pages[p // size] * size + p % size)
        return out

    def truncate(self, length: int) -> None:
        """Give back whole pages beyond `length` tokens, after a rejection.

        Raises ValueError below `sealed`: published tokens are committed, and are never rejected.
        """
        if length < self.sealed:
            raise ValueError(f"cannot cut to {length} tokens, the first {self.sealed} are published")
        keep = self.pool.pages_for(length)
        self.pool.release(self.pages[keep:])
        del self.pages[keep:]

    def publish(self, tokens: Sequence[int], computed: int) -> None:
        """Publish each page that is full of committed tokens whose K and V are stored, in every layer.

        tokens: the committed tokens from position 0 (never a draft that may be rejected, nothing after a
        stop). computed: how many of them are stored; the last committed token usually is not yet.
        """
        if not self.pool.prefix_cache:
            return
        size = self.pool.page_size
        for i in range(len(self._digests), min(computed, len(tokens)) // size):
            self._digests.append(self.pool.publish(self.pages[i], self._parent, tokens[i * size : (i + 1) * size]))

    def release(self) -> None:
        """Give back every page; published ones stay in the cache for others. May be called twice."""
        self.pool.release(self.pages)
        self.pages, self._digests = [], []

    @property
    def _parent(self) -> bytes:
        return self._digests[-1] if self._digests else b""
