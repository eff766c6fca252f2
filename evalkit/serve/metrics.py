"""The counts as a Prometheus page: under the project's own names, and under vLLM's for clients that know those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from evalkit.serve.stats import Snapshot

OURS = ("evalkit:", ("model_name",))
VLLM = ("vllm:", ("model_name", "engine"))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _counter(
    family: tuple[str, tuple[str, ...]], at: tuple[str, ...], name: str, said: str, value: int
) -> CounterMetricFamily:
    """A counter of one value; `at` are the values of the family's labels."""
    prefix, labels = family
    found = CounterMetricFamily(prefix + name, said, labels=labels)
    found.add_metric(at, value)
    return found


class Page:
    """A registry of its own, so that two servers in one process do not meet."""

    def __init__(self, name: str, snapshot: Callable[[], Snapshot]) -> None:
        self._name, self._snapshot = name, snapshot
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # process_start_time_seconds tells a restart
        PlatformCollector(registry=self._registry)
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        s = self._snapshot()
        engine = dict.fromkeys(("running", "waiting", "pages", "pages_used"), 0) | s.engine
        yield from self._ours(s, engine)
        yield from self._vllm(s, engine)

    def _ours(self, s: Snapshot, engine: dict[str, int]) -> Iterator[Metric]:
        (prefix, labels), at = OURS, (self._name,)
        counter = partial(_counter, OURS, at)
        yield counter("verify_steps", "Steps in which the target verified at least one draft.", s.verify_steps)
        yield counter("drafts", "Draft tokens proposed in verify steps.", s.drafts)
        yield counter("accepted_drafts", "Drafts kept by the verify rule, before trimming at a stop.", s.accepted)
        steps = CounterMetricFamily(
            f"{prefix}verify_steps_by_accepted", "Verify steps by the drafts they kept.", labels=[*labels, "accepted"]
        )
        for j, n in enumerate(s.by_accepted):
            steps.add_metric((*at, str(j)), n)
        yield steps
        yield counter("emitted_tokens", "Tokens that requests kept, the first one of each included.", s.emitted)
        yield counter("prompt_tokens", "Prompt tokens of finished requests.", s.prompt_tokens)
        ended = CounterMetricFamily(f"{prefix}requests", "Requests by how they ended.", labels=[*labels, "outcome"])
        for how in ("stop", "length", "cancelled", "failed", "refused"):
            ended.add_metric((*at, how), s.requests.get(how, 0))
        yield ended
        yield counter("preemptions", "Sequences that lost their pages for a while.", engine.get("preemptions", 0))
        if held := s.engine.get("prefill_delayer"):
            yield self._delayer(dict(held))
        for name, said in (
            ("running", "Sequences that run."),
            ("waiting", "Sequences that wait."),
            ("pages", "KV pages in all."),
            ("pages_used", "KV pages held by sequences."),
        ):
            gauge = GaugeMetricFamily(prefix + name, said, labels=labels)
            gauge.add_metric(at, engine[name])
            yield gauge

    def _delayer(self, told: dict[str, int]) -> Metric:
        """The delayer's decisions, parted so that they add up: "hold" has no tick of the interval in it."""
        parted = {n: count for n, count in told.items() if n.startswith("fire_")}
        parted["hold_decode_interval"] = told["hold_decode_interval"]
        parted["hold"] = told["hold"] - told["hold_decode_interval"]
        (prefix, labels), said = OURS, "Ticks by what the prefill delayer decided."
        ticks = CounterMetricFamily(f"{prefix}prefill_delayer_ticks", said, labels=[*labels, "decision"])
        for decision, n in parted.items():
            ticks.add_metric((self._name, decision), n)
        return ticks

    def _vllm(self, s: Snapshot, engine: dict[str, int]) -> Iterator[Metric]:
        (prefix, labels), at = VLLM, (self._name, "0")
        counter = partial(_counter, VLLM, at)
        yield counter("spec_decode_num_drafts", "Number of spec decoding drafts: verify steps.", s.verify_steps)
        yield counter("spec_decode_num_draft_tokens", "Number of draft tokens.", s.drafts)
        yield counter("spec_decode_num_accepted_tokens", "Number of accepted draft tokens.", s.accepted)
        places = CounterMetricFamily(
            f"{prefix}spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position.",
            labels=[*labels, "position"],
        )
        for i, n in enumerate(s.per_position):
            places.add_metric((*at, str(i)), n)
        yield places
        yield counter("prompt_tokens", "Prompt tokens of finished requests.", s.prompt_tokens)
        yield counter("generation_tokens", "Tokens generated.", s.emitted)
        yield counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", engine.get("prefix_queries", 0))
        yield counter("prefix_cache_hits", "Tokens found in the prefix cache.", engine.get("prefix_hits", 0))
        ended = CounterMetricFamily(
            f"{prefix}request_success", "Finished requests.", labels=[*labels, "finished_reason"]
        )
        for how in ("stop", "length"):
            ended.add_metric((*at, how), s.requests.get(how, 0))
        yield ended
        for name, key in (("num_requests_running", "running"), ("num_requests_waiting", "waiting")):
            gauge = GaugeMetricFamily(prefix + name, f"Requests {key}.", labels=labels)
            gauge.add_metric(at, engine[key])
            yield gauge
