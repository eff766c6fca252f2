"""Any server with OpenAI's endpoints that runs already, `evalkit serve` among them.

Where such a server has a metrics page with vLLM's names, its counters are read; otherwise only an estimate from the
chunks of a stream can be had.
"""

from __future__ import annotations

from collections.abc import Mapping

from evalkit.servers.profile import Profile
from evalkit.servers.vllm import PAGE

WORDS = ("k", "draft", "quant", "draft_width", "verify")


def setting(flags: Mapping[str, str]) -> dict[str, str]:
    """`evalkit serve` tells its setting in this project's own words; other servers tell none of them."""
    return {name: flags[name] for name in WORDS if name in flags}


PROFILE = Profile(
    name="openai",
    page=PAGE,
    json_page="/debug/mtp_stats",
    always_drafts=False,
    settings=("target", *WORDS),
    setting=setting,
    untold="acceptance: neither its replies nor counters with vLLM's names do",
)
