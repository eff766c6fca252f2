"""Training text: a byte-level BPE and rows of packed problems, both seeded and made on the fly.

A problem arrives as (question, answer). Every row is a function of (seed, step), so that training can
stop at any step and go on with the same rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

QA = tuple[str, str]
Stream = Callable[[int], Iterator[QA]]  # seed -> endless problems

PAD, EOS, MASK = 0, 1, 2
SPECIAL = ("<pad>", "<eos>", "<mask>")


def prompt(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE whose digits are single tokens; ids 0..2 are pad, eos and mask."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator(texts, trainer)
    return tok


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of equal length. `answer` marks tokens of solutions (and what ends them); a loss at position
    i is about ids[:, i + 1]."""

    ids: Tensor  # int64 [rows, length]
    answer: Tensor  # bool [rows, length]


def pack(problems: Iterator[QA], tok: Tokenizer, *, rows: int, length: int, joined: bool, rng: random.Random) -> Rows:
    """Fill `rows` rows from their first token on; the last problem of a row is cut.

    joined: problems follow each other after a blank line, as few-shot prompts have them; a document
    ends with eos after 1 to 10 of them. Otherwise each problem is a document of its own.
    """
    ids = np.zeros((rows, length), dtype=np.int64)
    answer = np.zeros((rows, length), dtype=bool)
    for r in range(rows):
        at, left = 0, rng.randint(1, 10)
        while at < length:
            q, a = next(problems)
            left -= 1
            last = not joined or left == 0
            parts = tok.encode_batch([prompt(q), " " + a + ("" if last else "\n\n")])
            head, tail = parts[0].ids, parts[1].ids + ([EOS] if last else [])
            row = (head + tail)[: length - at]
            ids[r, at : at + len(row)] = row
            answer[r, at + len(head) : at + len(row)] = True
            at += len(row)
            if last:
                left = rng.randint(1, 10)
    return Rows(torch.from_numpy(ids), torch.from_numpy(answer))
