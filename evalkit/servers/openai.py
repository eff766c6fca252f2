"""Any server with OpenAI's endpoints that runs already, `evalkit serve` among them.

Where such a server has a metrics page with vLLM's names, its counters are read; otherwise only an estimate from the
chunks of a stream can be had.
"""

from __future__ import annotations

from evalkit.servers.profile import Profile
from evalkit.servers.vllm import PAGE

PROFILE = Profile(
    name="openai",
    page=PAGE,
    json_page="/debug/mtp_stats",
    always_drafts=False,
    settings=("target", "draft", "k", "quant", "draft_width"),
    missing=("acceptance, unless the server has vLLM's counters",),
)
