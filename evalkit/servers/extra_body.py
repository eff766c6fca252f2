"""`--extra-body`: fields that a run adds to every request. One that evalkit sets itself, or that changes what is
measured, is refused: the run would be judged and certified as what its options say and not as what was asked."""

from __future__ import annotations

import json
import re
from typing import Any

from evalkit.errors import EvalkitError

_TASK = "the task sets it"
_ONE = "one answer a question is what is measured"
_REPLY = "evalkit reads plain replies"
SET_BY = {  # field of a body -> what says it
    "model": "--served-name",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "top_k": "--top-k",
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict"), "--max-tokens"),
    **dict.fromkeys(("seed", "sampling_seed"), "--seed"),
    **dict.fromkeys(("stream", "stream_options"), "--stream"),
}
NO_OPTION = {  # field of a body -> why no option says it
    **dict.fromkeys(("prompt", "messages", "text", "input_ids", "input_embeds", "prompt_embeds", "suffix"), _TASK),
    **dict.fromkeys(("stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "no_stop_trim"), _TASK),
    **dict.fromkeys(("n", "best_of", "use_beam_search"), _ONE),
    **dict.fromkeys(("echo", "logprobs", "top_logprobs", "prompt_logprobs", "n_probs", "return_logprob"), _REPLY),
    "sampling_params": "--temperature, --top-p, --top-k, --max-tokens and --seed set what is in it",
}
_DRAFTS = re.compile(r"spec(ulative|_decod)|draft|acceptance", re.IGNORECASE)  # llama.cpp: speculative.n_max
_SECRET = re.compile(r"api[-_]?key|secret|password|authorization|(access|auth)[-_]?token", re.IGNORECASE)


def read_extra(text: str) -> dict[str, Any]:
    """The object that was given; {} for "". Raises EvalkitError for one that may not be added."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise EvalkitError(f"--extra-body is no JSON ({e})", "give an object, in quotes") from None
    if not isinstance(found, dict):
        raise EvalkitError("--extra-body is no JSON object", "give an object, in quotes")
    try:
        json.dumps(found, allow_nan=False)
    except ValueError:
        raise EvalkitError("--extra-body has a number that JSON has not (NaN, Infinity)", "give a number") from None
    for name in found:
        _refuse(name)
    return found


def _refuse(name: str) -> None:
    what = f"--extra-body has {name!r}"
    if option := SET_BY.get(name):
        raise EvalkitError(f"{what}, which {option} sets", f"take it out, and give {option} for another value")
    if why := NO_OPTION.get(name):
        raise EvalkitError(f"{what}, and {why}", "take it out")
    if _DRAFTS.search(name):
        raise EvalkitError(f"{what}: how many drafts are verified is what --k says", "take it out, and give --k")
    if _SECRET.search(name):
        raise EvalkitError("--extra-body has a field named as a secret is, and a run stores it",
                           "take it out; a key goes with --api-key-env or --api-key-file")  # fmt: skip
