"""Texts that broke down: one token again and again, a loop, a flood of digits (C78). Standard library only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

TAIL = 2000  # characters looked at, from the end
MIN_LOOP = 200  # characters that a loop must cover ...
MIN_REPEATS = 4  # ... and times that it must come round
MIN_TOKENS, TOKEN_SHARE = 64, 0.9  # of the last 200 tokens, those that are one id
FLOOD = re.compile(r"[0-9](?:[\s,.]?[0-9]){59,}\s*$")
RULE = re.compile(r"[-=_*#~.\s|+]*")  # lines drawn with characters are no loops


def degenerate(text: str, token_ids: Sequence[int] = ()) -> str:
    """Why a text counts as broken down ("single token", "digit flood", "loop"), or ""."""
    last = token_ids[-200:]
    if len(last) >= MIN_TOKENS and Counter(last).most_common(1)[0][1] >= TOKEN_SHARE * len(last):
        return "single token"
    tail = text[-TAIL:].rstrip()
    if len(tail) < 60 or RULE.fullmatch(tail[-MIN_LOOP:]):
        return ""
    period = loop_period(tail)
    if not period:
        return "digit flood" if FLOOD.search(tail[-MIN_LOOP:]) else ""
    words = set(tail[-MIN_LOOP:].split()[1:-1])
    return "single token" if period <= 2 or len(words) == 1 else "loop"


def loop_period(tail: str) -> int:
    """Characters after which the end of a text repeats itself, over MIN_LOOP of them or more; 0 if it does not."""
    if len(tail) < MIN_LOOP or tail.count(tail[-16:]) < MIN_REPEATS - 1:  # the common case, at no cost
        return 0
    text = tail[::-1]
    border = [0] * len(text)
    k = 0
    for i in range(1, len(text)):
        while k and text[i] != text[k]:
            k = border[k - 1]
        k += text[i] == text[k]
        border[i] = k
        period = i + 1 - k
        if i + 1 >= MIN_LOOP and i + 1 >= MIN_REPEATS * period:
            return period
    return 0
