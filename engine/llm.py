"""LLM: text in, Completions out. Holds the one generate loop and the only tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ids
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from engine.api import Completion, Request, SamplingParams, TokenLogprob, Update, is_whole
from engine.checkpoint_config import load_model_config
from engine.config import EngineConfig, QuantMode
from engine.draft import DRAFTERS, Drafter
from engine.errors import EngineError
from engine.graphs import Graphs
from engine.kernels import Kernels
from engine.kv_cache import KVCache, LayerSpec, bytes_per_token
from engine.model import Target
from engine.moe import MoE
from engine.mono.path import MonoPath
from engine.mono.router import REASONS, Router, largest_batch, unfit
from engine.parallel import Parallel, RankLost
from engine.prefix_cache import OutOfPages, PagePool, PageTable
from engine.quant import FORMATS, INDEX_FORMATS, KVFormat
from engine.quant.apply import WeightReport, quantise_models, scales_rows, weight_report
from engine.ranks import Ranks
from engine.request import Sequence
from engine.runner import Runner, page_tables
from engine.scheduler import Scheduler
from engine.shard import Share, local_config, sum_over_ranks
from engine.tokenizer import Tokenizer
from engine.weights import draft_names, load_target, target_names

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
        self.device = _device(config.device, self.parallel)
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
        self.tokenizer.check_fit(self.target.cfg.vocab_size)
        self.drafter = self._drafter(drafter, share) if config.k else None
        self.online_quant = quantise_models(config, self.quant, _models(self.target, self.drafter), self.kernels)
        sum_over_ranks(self.target, self.parallel)
        if self.drafter and drafter is None and (own := self.drafter.weights()):
            sum_over_ranks(own, self.parallel)
        self.max_model_len = self._max_model_len()

        layers = _layers(self.target, self.drafter, self.quant)
        pages = config.num_pages or self._default_pages(bytes_per_token(layers))
        self.cache = KVCache(
            layers, num_pages=pages, page_size=config.page_size, device=self.device, dtype=_TORCH[self.quant.dtype],
            kernels=self.kernels,
        )  # fmt: skip
        if self.drafter:
            self.drafter.bind(self.cache, self.target.cfg.num_layers)
        self.pool = PagePool(pages, config.page_size, config.prefix_cache)
        self.scheduler = Scheduler(
            self.pool, max_batch=config.max_batch, max_batched_tokens=config.max_batched_tokens, k=config.k
        )
        self.runner = self._runner()
        self._added: dict[str, Sequence] = {}

    @property
    def counters(self) -> dict[str, Any]:
        """Totals since this LLM was made. verify_steps counts Steps with k >= 1; rows leave out padding.

        mono_steps and ordinary_steps part the decode ticks by the path that served them, see engine/mono/router.py.
        kernels names the operations that Triton's kernels ran and those that plain torch did, kernels_steps counts the
        decode ticks in which whatever has a kernel ran by it.
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
        return (*self.online_quant.notes, *drafts, *self._path_notes())

    def _path_notes(self) -> list[str]:
        band, run, config = self.quant.band, self.runner, self.config
        out = []
        if band and band.prefill_decode_interval:
            out.append(f"{self.quant.name}: prefill_decode_interval={band.prefill_decode_interval} is not served: this "
                       "engine prefills as soon as there is room")  # fmt: skip
        if band and band.mono and run.mono is None:
            out.append(f"{self.quant.name}: Mono serves no step: {REASONS[run.router.why_not]}")
        best = largest_batch(config.k, run.router.sizes)
        if run.mono is not None and best < config.max_batch and band:
            out.append(f"{self.quant.name}: at K={config.k} Mono serves steps of up to {best} requests, and up to "
                       f"{config.max_batch} decode together: --batch {best} keeps every step on it")  # fmt: skip
        if band and band.fused_verify_topk and not (self.target.cfg.sparse and any(self.target.cfg.sparse.computes)):
            out.append(f"{self.quant.name}: fused_verify_topk serves no step: the target has no block-sparse layer")
        return out

    def _runner(self) -> Runner:
        """The runner, with the paths beside the ordinary one that the configuration asks for and the target allows."""
        config, cfg = self.config, self.target.cfg
        own = self.cache.layers[: cfg.num_layers]
        why = "off" if config.mono == "off" else unfit(
            formats=[s.format for s in own], index_formats=[s.index_format for s in own if s.index_dim],
            dtype=self.quant.dtype, device=self.device.type, max_length=self.max_model_len, tp=config.tp,
            qk_norm=cfg.qk_norm,
        )  # fmt: skip
        if why and config.mono == "require":
            raise EngineError(f"mono is require, and Mono can serve no step: {REASONS[why]}", "use --mono auto")
        router = Router(config.k, config.graph_sizes, why)
        mono = None if why else MonoPath(self.target, self.cache)
        made = Runner(self.target, self.drafter, self.cache, config, router=router, mono=mono)
        if config.graph_sizes and self.device.type == "cuda" and not self.kernels.triton:
            raise EngineError(f"graphs is {config.graphs}, and no kernels run: plain torch waits for the GPU in every "
                              "step, which no graph can hold", "use --graphs off, or --kernels auto")  # fmt: skip
        experts = (m for m in self.target.modules() if isinstance(m, MoE))
        if config.graph_sizes and self.device.type == "cuda" and any(m.counts_on_host for m in experts):
            raise EngineError(f"graphs is {config.graphs}, and the target has experts in a format without a kernel: "
                              "how many rows each gets is read on the host, which no graph can hold",
                              "use --graphs off, or quantise the experts in ptpc_fp8, mxfp8 or mxfp4")  # fmt: skip
        if config.graph_sizes:
            made.graphs = Graphs(
                made.ordinary, sizes=config.graph_sizes, width=config.k + 1, device=self.device,
                pages=self.pool.pages_for(self.max_model_len), max_length=self.max_model_len,
            )  # fmt: skip
        return made

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
        seqs = self._sequences(list(requests))
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
        (seq,) = self._sequences([request])
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
        self._check_ids("score", prompt_ids)
        self._check_ids("score", continuation_ids, "continuation")
        found = self.logprobs([*prompt_ids, *continuation_ids], len(prompt_ids))
        return [f.logprob for f in found], [f.top[0][0] == f.token_id for f in found]

    @torch.inference_mode()
    def logprobs(self, ids: Ids[int], first: int = 1, top: int = 1) -> list[TokenLogprob]:
        """What the target makes of the tokens ids[first:], each after all that precede it. first is at least 1.

        `top` is how many of the likeliest tokens are named. Raises EngineError for a token id outside the
        vocabulary, or more tokens than the context or the pool hold.
        """
        assert first >= 1 and top >= 1
        self._check_ids("score", ids)
        if len(ids) - 1 > self.max_model_len:
            raise EngineError(f"score: {first} + {len(ids) - first} tokens do not fit in {self.max_model_len}")
        with self._on_all_ranks("logprobs", tuple(ids), first, top):
            return self._scored(ids, first, top)

    def _scored(self, ids: Ids[int], first: int, top: int) -> list[TokenLogprob]:
        table = PageTable(self.pool)
        try:
            start = table.reuse(ids[:first], len(ids) - 1)
        except OutOfPages as e:
            raise EngineError(f"score: {e}", "raise num_pages or memory_limit_mb") from None
        found: list[TokenLogprob] = []
        try:
            while start < len(ids) - 1:
                end = min(start + self.config.max_batched_tokens, len(ids) - 1)
                rows = torch.tensor([ids[start:end]], device=self.device)
                pages = page_tables([table], end)
                hidden = self.runner.forward(rows, np.array([start]), np.array([end - start]), pages)
                skip = max(first - 1 - start, 0)
                if skip < end - start:
                    logits = self.target.logits(hidden[skip:])
                    found += _logprobs(logits, ids[start + skip + 1 : end + 1], top)
                start = end
            table.publish(ids, start)
        finally:
            table.release()
        return found

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

    def _sequences(self, requests: list[Request]) -> list[Sequence]:
        """Checked and tokenised requests."""
        _check_requests(requests)
        texts = [r.prompt for r in requests if isinstance(r.prompt, str)]
        encoded = iter(self.tokenizer.encode(texts))
        prompts = [next(encoded) if isinstance(r.prompt, str) else [int(t) for t in r.prompt] for r in requests]
        return [self._sequence(r, p) for r, p in zip(requests, prompts, strict=True)]

    def _sequence(self, request: Request, prompt: list[int]) -> Sequence:
        params, name = request.params, f"request {request.id}"
        self._check_ids(name, prompt)
        if len(prompt) + 1 > self.max_model_len:
            raise EngineError(f"{name}: its prompt has {len(prompt)} tokens, the context holds {self.max_model_len} "
                              "with at least one of output", "shorten the prompt or raise max_model_len")  # fmt: skip
        # a stop string that is one special token leaves no text, so it is watched for as a token
        special = {self.tokenizer.special[s]: s for s in params.stop if s in self.tokenizer.special}
        plain = tuple(s for s in params.stop if s not in self.tokenizer.special)
        eos = () if params.ignore_eos else self.target.cfg.eos_token_ids
        seq = Sequence(
            request,
            prompt,
            max_model_len=self.max_model_len,
            stop_ids={t: str(t) for t in (*eos, *params.stop_token_ids)} | special,
            watch=self.tokenizer.watch(plain) if plain else None,
            run_seed=self.config.seed,
            table=PageTable(self.pool),
            forced=self.config.verify == "forced",
        )
        longest = min(len(prompt) + seq.limit + self.config.k, self.max_model_len)
        need = self.pool.pages_for(longest)
        if need > self.pool.num_pages:
            raise EngineError(f"{name}: {len(prompt)} prompt and {seq.limit} output tokens need {need} KV pages, the "
                              f"pool has {self.pool.num_pages}", "raise num_pages or memory_limit_mb, or lower "
                              "max_tokens")  # fmt: skip
        return seq

    def _check_ids(self, name: str, ids: Ids[int], what: str = "prompt") -> None:
        vocab = self.target.cfg.vocab_size
        if not ids:
            raise EngineError(f"{name}: its {what} has 0 tokens", "give at least one token")
        low, high = min(ids), max(ids)
        if low < 0 or high >= vocab:
            bad = low if low < 0 else high
            raise EngineError(f"{name}: its {what} of {len(ids)} tokens holds the id {bad}, the vocabulary has "
                              f"0 to {vocab - 1}", "use the model's own tokenizer")  # fmt: skip

    def _drafter(self, given: Drafter | None, share: Share) -> Drafter:
        if given is not None:
            return given
        if self.config.draft not in DRAFTERS:
            raise EngineError(f"the draft {self.config.draft} has no checkpoint to load", "hand LLM a drafter object")
        made = DRAFTERS[self.config.draft](self.config, self.target, share)
        if self.config.scheduled and getattr(made.weights(), "confidence", None) is None:
            raise EngineError(f"the draft {self.config.draft} gives no confidences to choose drafts by",
                              "leave confidence_threshold and verify_rows at 0")  # fmt: skip
        return made

    def _max_model_len(self) -> int:
        longest = self.target.cfg.max_positions
        if self.drafter and self.drafter.kv:
            longest = min(longest, self.drafter.kv.max_positions)
        if self.config.max_model_len > longest:
            raise EngineError(f"max_model_len is {self.config.max_model_len}, the checkpoints allow {longest}",
                              f"use at most {longest}")  # fmt: skip
        return self.config.max_model_len or longest

    def _default_pages(self, per_token: int) -> int:
        """Pages for max_batch full-length sequences, as far as memory_limit_mb allows (1 MB is 2**20 bytes)."""
        size = self.config.page_size
        limit = self.config.memory_limit_mb * 2**20 // (per_token * size)
        if limit < 1:
            raise EngineError(f"memory_limit_mb is {self.config.memory_limit_mb}, one KV page takes "
                              f"{per_token * size} bytes", "raise memory_limit_mb")  # fmt: skip
        return min(limit, self.config.max_batch * -(-self.max_model_len // size))


def _logprobs(logits: torch.Tensor, follow: Ids[int], top: int) -> list[TokenLogprob]:
    """A record for each row of logits [n, vocab] and the token that follows it."""
    logs = logits.log_softmax(-1)
    said = logs.gather(1, torch.tensor(follow, device=logits.device)[:, None]).squeeze(1).tolist()
    # one alone by max, as decoding chooses: among equals, topk may name another first
    values, ids = logs.max(-1, keepdim=True) if top == 1 else logs.topk(min(top, logs.shape[-1]), dim=-1)
    likeliest = zip(ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprob(token_id=t, logprob=p, top=tuple(zip(i, v, strict=True)))
        for t, p, (i, v) in zip(follow, said, likeliest, strict=True)
    ]


def _layers(target: Target, drafter: Drafter | None, quant: QuantMode) -> list[LayerSpec]:
    """Cache of the target's layers, then of the draft's, each in the format that the mode gives it.

    A block-sparse layer that picks for itself keeps index keys beside its keys and values.
    """
    t, d = target.cfg, drafter.kv if drafter else None
    sparse = t.sparse.layers if t.sparse else (False,) * t.num_layers
    formats = quant.kv_formats(sparse=sparse, draft_layers=d.num_layers if d else 0)
    layers = []
    for i, name in enumerate(formats):
        cfg = t if i < t.num_layers or d is None else d
        picks = t.sparse if t.sparse and i < t.num_layers and t.sparse.computes[i] else None
        layers.append(
            LayerSpec(
                format=name,
                kv_heads=cfg.num_kv_heads,
                head_dim=cfg.head_dim,
                index_format=quant.index_format if picks else "",
                index_dim=picks.index_dim if picks else 0,
            )
        )
    if drafter and drafter.kept_size:
        kept = {"index_format": quant.dtype, "index_dim": drafter.kept_size}
        layers[t.num_layers] = replace(layers[t.num_layers], **kept)
    for spec in layers:
        _check_width(FORMATS[spec.format], spec.head_dim, "kv")
        if spec.index_dim:
            _check_width(INDEX_FORMATS[spec.index_format], spec.index_dim, "index")
    return layers


def _unused(config: EngineConfig) -> list[str]:
    """What was asked of a draft that K=0 leaves out."""
    plain = {"verify": "standard", "draft_width": "k", "confidence_threshold": 0.0, "verify_rows": 0}
    words = [f"{name}={value}" for name, default in plain.items() if (value := getattr(config, name)) != default]
    return [f"K is 0: there is no draft for {' and '.join(words)}"] if words and not config.k else []


def _check_requests(requests: list[Request]) -> None:
    """Raises EngineError for what no request can be, whatever the model."""
    ids: set[str] = set()
    for r in requests:
        name, prompt = f"request {r.id}", r.prompt
        if r.id in ids:
            raise EngineError(f"two requests have the id {r.id}", "give each request an id of its own")
        ids.add(r.id)
        if not isinstance(r.params, SamplingParams):
            raise EngineError(f"{name}: its params are a {type(r.params).__name__}", "give SamplingParams")
        if isinstance(prompt, str):
            try:
                prompt.encode()
            except UnicodeEncodeError as e:
                raise EngineError(f"{name}: its prompt holds half a character (a lone surrogate) at place {e.start}",
                                  "give text that UTF-8 can hold") from None  # fmt: skip
        elif not isinstance(prompt, tuple | list):
            raise EngineError(f"{name}: its prompt is a {type(prompt).__name__}", "give text, or a tuple of token ids")
        elif bad := [t for t in prompt if not is_whole(t)]:
            raise EngineError(f"{name}: its prompt holds {bad[0]!r}, which is no token id", "give whole numbers")


def _check_width(fmt: KVFormat, dim: int, family: str) -> None:
    if dim % fmt.block:
        raise EngineError(f"{family} vectors are {dim} wide, {fmt.name} needs a multiple of {fmt.block}",
                          f"use another format for {family}=")  # fmt: skip


def _models(target: Target, drafter: Drafter | None) -> dict[str, tuple[nn.Module, dict[str, tuple[str, ...]]]]:
    """What may be quantised, with the checkpoint's names of its parameters."""
    found: dict[str, tuple[nn.Module, dict[str, tuple[str, ...]]]] = {"target": (target, target_names(target.cfg))}
    if drafter and (draft := drafter.weights()):
        found["draft"] = (draft, draft_names(draft.cfg))
    return found


def _device(name: str, parallel: Parallel) -> torch.device:
    """The device of this rank."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise EngineError(f"device is {name}", "use auto, cpu or cuda (ROCm calls its devices cuda too)")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise EngineError("device is cuda, but torch finds none", "use device cpu")
    if name == "cuda" and parallel.size > 1:
        if (count := torch.cuda.device_count()) < parallel.size:
            raise EngineError(f"tp is {parallel.size}, torch finds {count} devices", f"use tp={count}, or device cpu")
        torch.cuda.set_device(parallel.rank)
        name = f"cuda:{parallel.rank}"
    return torch.device(name)
