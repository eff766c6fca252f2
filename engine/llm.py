"""LLM: text in, Completions out. Holds the one generate loop and the only tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ids
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch

from engine.api import Completion, Request, TokenLogprob, Update
from engine.checkpoint_config import load_model_config
from engine.config import EngineConfig, QuantMode
from engine.delayer import Delayer
from engine.draft import Drafter
from engine.errors import EngineError
from engine.intake import Intake
from engine.kernels import Kernels
from engine.kv_cache import KVCache, bytes_per_token
from engine.loading import cache_layers, default_pages, device_of, longest_context, make_drafter, quantisable
from engine.logprobs import scored
from engine.parallel import Parallel, RankLost
from engine.paths import make_runner, path_notes
from engine.prefix_cache import PagePool
from engine.quant.apply import WeightReport, quantise_models, scales_rows, weight_report
from engine.ranks import Ranks
from engine.request import Sequence
from engine.scheduler import Scheduler
from engine.shard import Share, local_config, sum_over_ranks
from engine.tokenizer import Tokenizer
from engine.weights import load_target

_TORCH = {"float32": torch.float32, "bf16": torch.bfloat16}


class LLM:
    """A target, with a draft or without, ready to generate.

    drafter: an object to use in place of the one config.draft names; "scripted" needs it, and each rank has all of it.
    Raises EngineError for a checkpoint, draft or memory limit that does not do. With config.tp above 1 this is rank 0
    and starts the others, each a process with its share of the weights and of the KV heads; `parallel` is how those are
    made.
    """

    def __init__(
        self, config: EngineConfig, *, drafter: Drafter | None = None, parallel: Parallel | None = None
    ) -> None:
        self.config = config
        self.parallel = parallel or Parallel(0, config.tp)
        self.device = device_of(config.device, self.parallel)
        if config.threads or config.tp > 1:  # as many on each rank: what all compute alike must have the same bits
            torch.set_num_threads(max(1, (config.threads or torch.get_num_threads()) // config.tp))
        self.ranks: Ranks | None = None
        if config.tp > 1 and parallel is None:
            local_config(load_model_config(config.model), config.tp)
            self.ranks = Ranks(replace(config, threads=torch.get_num_threads() * config.tp), drafter)
        try:
            self._load(config, drafter)
        except BaseException:
            self.close()
            raise
        if self.ranks:
            self.ranks.connect(self.parallel, self.device)

    def _load(self, config: EngineConfig, drafter: Drafter | None) -> None:
        dtype = config.dtype if config.dtype != "auto" else "float32" if self.device.type == "cpu" else "bf16"
        self.quant = QuantMode.parse(config.quant, dtype)
        self.kernels = Kernels.choose(config.kernels, self.device)
        self.tokenizer = Tokenizer(config.model)
        rank, size = self.parallel.rank, self.parallel.size
        share = Share(rank=rank, size=size, row_amax=size > 1 and scales_rows(config, self.quant))
        device = str(self.device)
        self.target = load_target(config.model, dtype=_TORCH[self.quant.dtype], device=device, share=share)
        self.drafter = make_drafter(config, self.target, share, drafter) if config.k else None
        self.online_quant = quantise_models(config, self.quant, quantisable(self.target, self.drafter), self.kernels)
        sum_over_ranks(self.target, self.parallel)
        if self.drafter and drafter is None and (own := self.drafter.weights()):
            sum_over_ranks(own, self.parallel)
        self.max_model_len = longest_context(config, self.target, self.drafter)

        layers = cache_layers(self.target, self.drafter, self.quant)
        pages = config.num_pages or default_pages(config, bytes_per_token(layers), self.max_model_len)
        self.cache = KVCache(
            layers, num_pages=pages, page_size=config.page_size, device=self.device, dtype=_TORCH[self.quant.dtype],
            kernels=self.kernels,
        )  # fmt: skip
        if self.drafter:
            self.drafter.bind(self.cache, self.target.cfg.num_layers)
        self.pool = PagePool(pages, config.page_size, config.prefix_cache)
        budget, how = config.max_batched_tokens, config.delayer
        self.scheduler = Scheduler(
            self.pool, max_batch=config.max_batch, max_batched_tokens=budget, k=config.k,
            delayer=Delayer(how, budget) if how.interval else None,
        )  # fmt: skip
        self.runner = make_runner(
            config, self.quant, self.target, self.drafter, self.cache, pages=self.pool.pages_for(self.max_model_len),
            max_model_len=self.max_model_len,
        )  # fmt: skip
        self.intake = Intake(
            config=config, model=self.target.cfg, tokenizer=self.tokenizer, pool=self.pool,
            max_model_len=self.max_model_len,
        )  # fmt: skip
        self._added: dict[str, Sequence] = {}

    @property
    def counters(self) -> dict[str, Any]:
        """Totals since this LLM was made. verify_steps counts Steps with k >= 1; rows leave out padding.

        mono_steps and ordinary_steps part the decode ticks by the path that served them, see engine/mono/router.py.
        kernels names the operations that Triton's kernels ran and those that plain torch did, kernels_steps counts the
        decode ticks in which whatever has a kernel ran by it. prefill_delayer is there where a delayer is, see
        engine/delayer.py.
        Bytes are those of one rank.
        """
        run, plan = self.runner, self.scheduler
        return {
            "prefill_tokens": run.prefill_tokens,
            "prefill_ticks": run.prefill_ticks,
            "decode_ticks": run.decode_ticks,
            "decode_rows": run.decode_rows,
            "verify_steps": run.verify_steps,
            "drafts_left_out": run.drafts_left_out,
            "preemptions": plan.preemptions,
            "cached_tokens": plan.cached_tokens,
            "peak_pages": plan.peak_pages,
            "kv_bytes_per_token": self.cache.bytes_per_token(),
            "weight_bytes": sum(self.weights.nbytes.values()),
            "weight_cache_bytes": self.weights.cached,
            "fused_verify_topk_steps": run.fused_topk_steps,
            "kernels_steps": run.kernels_steps,
            "kernels": self.kernels.served(),
            **({"prefill_delayer": plan.delayer.counters()} if plan.delayer else {}),
            **run.router.counters(),
            **(run.graphs.counters() if run.graphs else {}),
        }

    @property
    def weights(self) -> WeightReport:
        """Bytes and layers of the target's and the draft's weights by format; shared ones count once."""
        draft = self.drafter.weights() if self.drafter else None
        return weight_report(self.target, *((draft, *draft.shared) if draft else ()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for and is not as one might expect, a sentence each."""
        drafts = self.drafter.notes if self.drafter else _unused(self.config)
        tokens = self.tokenizer.notes(self.target.cfg.vocab_size)
        return (*tokens, *self.online_quant.notes, *drafts, *path_notes(self.config, self.quant, self.runner))

    @torch.inference_mode()
    def generate(
        self, requests: Iterable[Request], on_finish: Callable[[Completion], None] | None = None
    ) -> list[Completion]:
        """Complete every request; the list is in the order of `requests`.

        on_finish is called with each Completion as it finishes. All prompts are checked before any is
        run. Raises EngineError, naming the request, for an empty or too long prompt, one that is neither text nor token
        ids, a token id outside the vocabulary, an id that two requests have, or a request that the KV pool can never
        hold. Where several ranks share the model also for one that is lost, or that commits something else; they have
        ended then, as after any other exception but one of on_finish.
        """
        if self._added:
            raise EngineError(
                f"{len(self._added)} added requests are running", "step until they have finished, or cancel"
            )
        seqs = self.intake.sequences(list(requests))
        with self._on_all_ranks("generate", [replace(s.request, prompt=tuple(s.tokens)) for s in seqs]):
            return self._generate(seqs, on_finish)

    def _generate(self, seqs: list[Sequence], on_finish: Callable[[Completion], None] | None) -> list[Completion]:
        done: dict[int, Completion] = {}
        self.scheduler.add(seqs)
        try:
            while not self.scheduler.idle:
                for seq in self._tick():
                    if seq.finish_reason is None:
                        continue
                    done[id(seq)] = completion = seq.completion(self.tokenizer.decode)
                    if on_finish:
                        self._hand_over(completion, on_finish)
            self.parallel.in_step()  # so that rank 0 can end it after any tick, the last one too
        finally:
            self.scheduler.abort()
        return [done[id(s)] for s in seqs]

    def _hand_over(self, completion: Completion, on_finish: Callable[[Completion], None]) -> None:
        """Calls on_finish; where it raises, the other ranks are told to leave the requests that run."""
        try:
            on_finish(completion)
        except BaseException:
            if self.ranks:
                with suppress(RankLost):
                    self.parallel.in_step(stop=True)
                    self.ranks.released = True
            raise

    def _on_all_ranks(self, name: str, *args: object) -> AbstractContextManager[None]:
        """Around a call that all ranks make together: the others make it as well."""
        return self.ranks.call(name, *args) if self.ranks else nullcontext()

    def close(self) -> None:
        """End the other ranks, if there are any; they also end with this object."""
        if self.ranks:
            self.ranks.close()

    @property
    def busy(self) -> bool:
        """True while a request that was added has not finished."""
        return bool(self._added)

    def add(self, request: Request) -> None:
        """Queue a request for `step`, at any time between two steps: it joins the running batch.

        Raises EngineError as `generate` does, and for an id that is in use.
        """
        if request.id in self._added:
            raise EngineError(f"request {request.id} is running already", "give each request an id of its own")
        (seq,) = self.intake.sequences([request])
        with self._on_all_ranks("add", replace(request, prompt=tuple(seq.tokens))):
            self.scheduler.add([seq])
            self._added[request.id] = seq

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Run one tick and say what each added request got; [] where there was nothing to tell.

        Where it raises (EngineError for logits that are not numbers), every added request is given up.
        """
        if not self._added:
            return []
        try:
            with self._on_all_ranks("step"):
                ran = self._tick()
            found = [update for seq in ran if (update := seq.update(self.tokenizer.decode))]
        except BaseException:
            self.scheduler.abort()
            self._added.clear()
            raise
        for update in found:
            if update.completion is not None:
                del self._added[update.id]
        return found

    def cancel(self, request_id: str) -> bool:
        """Give up an added request and its pages; False where none of that id is running."""
        if request_id not in self._added:
            return False
        with self._on_all_ranks("cancel", request_id):
            self.scheduler.remove(self._added.pop(request_id))
        return True

    def score(self, prompt_ids: Ids[int], continuation_ids: Ids[int]) -> tuple[list[float], list[bool]]:
        """Log-probability of each continuation token after what precedes it, and whether it is the argmax.

        Natural logarithm of the target's plain softmax. Raises EngineError for an empty prompt or
        continuation, a token id outside the vocabulary, or more tokens than the context or the pool hold.
        """
        self.intake.check_ids("score", prompt_ids)
        self.intake.check_ids("score", continuation_ids, "continuation")
        found = self.logprobs([*prompt_ids, *continuation_ids], len(prompt_ids))
        return [f.logprob for f in found], [f.top[0][0] == f.token_id for f in found]

    @torch.inference_mode()
    def logprobs(self, ids: Ids[int], first: int = 1, top: int = 1) -> list[TokenLogprob]:
        """What the target makes of the tokens ids[first:], each after all that precede it. first is at least 1.

        `top` is how many of the likeliest tokens are named. Raises EngineError for a token id outside the
        vocabulary, or more tokens than the context or the pool hold.
        """
        assert first >= 1 and top >= 1
        self.intake.check_ids("score", ids)
        if len(ids) - 1 > self.max_model_len:
            raise EngineError(f"score: {first} + {len(ids) - first} tokens do not fit in {self.max_model_len}")
        with self._on_all_ranks("logprobs", tuple(ids), first, top):
            return scored(self.runner, self.pool, ids, first=first, top=top, most=self.config.max_batched_tokens)

    def _tick(self) -> list[Sequence]:
        """One tick, and its bookkeeping; the sequences that ran in it."""
        plan = self.scheduler.next()
        assert plan is not None  # a sequence that is checked always fits, alone if need be
        self.parallel.in_step()
        self.runner.tick(plan)
        ran = plan.decode or [c.seq for c in plan.prefill]
        self.parallel.note(ran, self.config.k + 1)
        finished = self.scheduler.settle(plan)
        for seq in finished:
            seq.close()
        return ran


def _unused(config: EngineConfig) -> list[str]:
    """What was asked of a draft that K=0 leaves out."""
    plain = {"verify": "standard", "draft_width": "k", "confidence_threshold": 0.0, "verify_rows": 0}
    words = [f"{name}={value}" for name, default in plain.items() if (value := getattr(config, name)) != default]
    return [f"K is 0: there is no draft for {' and '.join(words)}"] if words and not config.k else []
