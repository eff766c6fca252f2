"""Whether the Hugging Face hub can be reached: asked once, in seconds, before anything is fetched from it.

Left alone, the hub's client tries a host that never answers several times, for most of a minute. Where the hub does
not answer its client is put into its offline mode, in which a data set fetched before is still read from the cache.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from datasets import config as datasets_config
from huggingface_hub import constants

WAIT = 3.0  # seconds


def reachable(url: str = "", wait: float = 0.0) -> bool:
    """Whether anything answers at `url` (the hub's, by default) in `wait` seconds (WAIT); any answer counts."""
    wait = wait or WAIT
    found: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(url or constants.ENDPOINT, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=wait):
                found.append(True)
        except urllib.error.HTTPError as e:
            e.close()
            found.append(True)
        except (OSError, ValueError) as e:
            found.append("CERTIFICATE" in str(e).upper())  # it answers; its client may know the certificate

    asking = threading.Thread(target=ask, daemon=True)  # looking a name up has no time limit of its own
    asking.start()
    asking.join(wait)
    return bool(found and found[0])


@contextmanager
def offline_where_unreachable() -> Iterator[bool]:
    """The hub's client in offline mode, where it is not already, if the hub does not answer; yields whether it is."""
    before = constants.HF_HUB_OFFLINE, datasets_config.HF_HUB_OFFLINE
    offline = any(before) or not reachable()
    constants.HF_HUB_OFFLINE = datasets_config.HF_HUB_OFFLINE = offline
    try:
        yield offline
    finally:
        constants.HF_HUB_OFFLINE, datasets_config.HF_HUB_OFFLINE = before
