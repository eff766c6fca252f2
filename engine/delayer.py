"""When a prefill waits, so that decodes go on: ATOM's prefill delayer, for one data-parallel rank.

A prefill tick stops every decode. After one, `interval` ticks belong to the decodes; after those, prefill is held until
enough tokens have gathered, or nothing more gathers, or it has waited long enough. An interval of 20000 never runs out:
prefill then waits until no request decodes. Decides when a token is computed, never which. Standard library only.

Not built: release by the age of a request (ATOM's MAX_QUEUE_MS), a clock that ranks could read differently.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from engine.errors import EngineError, nearest

REASONS = ("fill", "stall", "ttft", "kv", "partial", "nodecode", "vacuous")
_CHOICES = {"rearm": ("chunk", "prompt"), "prefillable": ("admissible", "allocatable", "queued")}


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayerConfig:
    """What a Delayer goes by. Ticks are passes of the scheduler; shares are of 1. Defaults are ATOM's.

    No public text settles two things, so they are choices. `rearm`: the interval starts anew after any chunk of a
    prompt, or only after its last one. `prefillable`, where no prompt is half done: the head of the queue could start
    now (pages and a place in the batch), or has its pages, or there is a queue at all. ATOM asks for pages; its batch
    is twice the client's concurrency there and never full, which makes the first two one.
    """

    interval: int = 0  # ticks for decodes after each prefill tick; 0: no delayer
    fill: float = 0.9  # release where this share of the budget of a prefill tick waits
    stall: int = 10  # release after this many ticks on which the queue did not grow
    ttft: int = 200  # longest hold after the interval
    partial: int = 100  # the same where a prompt is half done
    kv_high: float = 0.9  # release where this share of the KV pages is in use
    kv_low: float = 0.0  # release below this share; 0: never
    rearm: str = "chunk"
    prefillable: str = "admissible"

    @classmethod
    def parse(cls, interval: int, words: str = "") -> DelayerConfig:
        """The configuration of an interval and of words such as `stall=5 rearm=prompt`. Raises EngineError."""
        if interval < 0:
            raise EngineError(f"prefill_decode_interval is {interval}", "give 0 (prefill goes first) or more")
        if words.split() and not interval:
            raise EngineError(f"prefill_delayer is {words!r} and prefill_decode_interval 0: there is no delayer",
                              "give an interval, or leave the words away")  # fmt: skip
        found: dict[str, float | int | str] = {}
        for word in words.split():
            key, _, value = word.partition("=")
            if key in found:
                raise EngineError(f"prefill_delayer gives {key} twice", "give it once")
            found[key] = _value(key, value, word)
        return cls(interval=interval, **found)  # type: ignore[arg-type]

    @property
    def words(self) -> str:
        """What differs from the defaults, beside the interval, in one spelling."""
        told = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "interval"}
        changed = {name: value for name, value in told.items() if value != _DEFAULTS[name]}
        return " ".join(f"{name}={value}" for name, value in changed.items())


_DEFAULTS = {f.name: f.default for f in fields(DelayerConfig) if f.name != "interval"}


def _value(key: str, value: str, word: str) -> float | int | str:
    if key not in _DEFAULTS:
        hint = nearest(key, tuple(_DEFAULTS))
        raise EngineError(f"prefill_delayer has {word!r}", f"{hint}use {', '.join(_DEFAULTS)}")
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            hint = nearest(value, _CHOICES[key])
            raise EngineError(f"prefill_delayer has {word!r}", f"{hint}use {key}={'|'.join(_CHOICES[key])}")
        return value
    whole = isinstance(_DEFAULTS[key], int)
    try:
        found = int(value) if whole else float(value)
    except ValueError:
        found = -1
    if not (found >= 1 if whole else 0.0 <= found <= 1.0 and (found > 0 or key == "kv_low")):
        what = "a whole number of at least 1" if whole else "a share from 0 to 1"
        raise EngineError(f"prefill_delayer has {word!r}", f"give {key} {what}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What waits and what runs, as the scheduler sees it before a tick. `pending` is in tokens, at most the budget."""

    prefillable: bool
    pending: int
    decoding: int
    partial: bool  # a prompt is half done
    kv_used: float  # share of the pages that sequences hold


class Delayer:
    """`allow` is asked once a tick, whatever waits; `ran` is told of every prefill tick."""

    def __init__(self, config: DelayerConfig, budget: int) -> None:
        self.config, self._budget = config, budget
        self._fired: dict[str, int] = dict.fromkeys(REASONS, 0)
        self._hold = self._hold_interval = 0
        self._first, self._ran = True, False
        self._left = 0  # of the interval
        self._reset()

    def ran(self, *, ended: bool) -> None:
        """A prefill tick was computed; `ended` says that it was some prompt's last."""
        self._ran |= ended or self.config.rearm == "chunk"

    def allow(self, load: Load) -> bool:
        """Whether this tick may prefill. The interval comes before every other reason to release."""
        how = self.config
        if self._ran:
            self._left, self._ran = how.interval, False
        if self._first:  # in no counter, as in ATOM
            self._first = False
            return True
        if self._left > 0:
            self._left -= 1  # with every tick, whether something waits or not
            if load.prefillable and load.decoding:
                self._hold += 1
                self._hold_interval += 1
                return False
        if not load.prefillable:
            return self._fire("vacuous")
        if not load.decoding:
            return self._fire("nodecode")
        if load.kv_used >= how.kv_high or load.kv_used < how.kv_low:
            return self._fire("kv")
        if self._held >= how.ttft:
            return self._fire("ttft")
        if load.partial and self._held >= how.partial:
            return self._fire("partial")
        if load.pending >= how.fill * self._budget:
            return self._fire("fill")
        self._stalled = self._stalled + 1 if load.pending <= self._before else 0
        self._before = load.pending
        if self._stalled >= how.stall:
            return self._fire("stall")
        self._held += 1
        self._hold += 1
        return False

    def counters(self) -> dict[str, float]:
        """Ticks by what was decided; they add up to `ticks`, which leaves out the first. `hold` has
        `hold_decode_interval` in it. `held_share` is hold_decode_interval / ticks, the published "ticks held"."""
        ticks = sum(self._fired.values()) + self._hold
        fired = {f"fire_{reason}": n for reason, n in self._fired.items()}
        return {
            "interval": self.config.interval, "ticks": ticks, **fired, "hold": self._hold,
            "hold_decode_interval": self._hold_interval, "held_share": self._hold_interval / ticks if ticks else 0.0,
        }  # fmt: skip

    def _fire(self, reason: str) -> bool:
        self._fired[reason] += 1
        self._reset()
        return True

    def _reset(self) -> None:
        self._held = self._stalled = 0
        self._before = -1
