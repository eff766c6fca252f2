"""Text to ids and back: a thin layer over the tokenizer.json of a model folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as HfTokenizer
from tokenizers.decoders import DecodeStream

from engine.config_fields import read_json, switch
from engine.errors import EngineError


class Tokenizer:
    """The only tokenizer of the engine. Special tokens leave no text.

    bos: what the checkpoint's tokenizer puts before a text, as its post-processor does or `add_bos_token` says; mostly
    nothing. It is added once: a prompt whose template wrote it gets no second one.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise EngineError(f"{path} does not exist", "give a model folder with a tokenizer.json")
        try:
            self.inner = HfTokenizer.from_file(str(path))
        except Exception as e:  # the library raises bare Exception for every malformed file
            raise EngineError(f"{path} cannot be read ({e})", "restore the file") from None
        self.path = path
        self.inner.no_truncation()
        self.inner.no_padding()
        self._pieces: dict[int, str] = {}
        self.bos = _bos(self.inner, folder)
        self.special = {t.content: i for i, t in self.inner.get_added_tokens_decoder().items() if t.special}

    def encode(self, texts: list[str], *, bos: bool = True) -> list[list[int]]:
        """Ids of each text, `bos` before it. Special tokens written out in a text become their ids."""
        found = [e.ids for e in self.inner.encode_batch(texts, add_special_tokens=False)]
        head = self.bos if bos else []
        return [ids if ids[: len(head)] == head else head + ids for ids in found]

    def decode(self, ids: list[int]) -> str:
        """Text of ids, without special tokens."""
        return self.inner.decode(ids, skip_special_tokens=True)

    def pieces(self, ids: list[int]) -> list[str]:
        """Each id's own text; a special token's name. A character that several tokens share shows as U+FFFD."""
        return [self._piece(i) for i in ids]

    def _piece(self, i: int) -> str:
        if i not in self._pieces:
            self._pieces[i] = self.inner.decode([i], skip_special_tokens=False)
        return self._pieces[i]

    def name(self, i: int) -> str:
        """How an id is written in the vocabulary, in quotes; "" where it is not in it."""
        found = self.inner.id_to_token(i) if 0 <= i < 2**32 else None
        return "" if found is None else repr(found)

    def notes(self, vocab: int) -> list[str]:
        """What a reader should know of ids that a model with a vocabulary of `vocab` has no row for.

        Published checkpoints have such tokens (of tools, of images) and never see them; a prompt with one is refused.
        """
        beyond = [i for i in self.inner.get_vocab(with_added_tokens=True).values() if i >= vocab]
        if not beyond:
            return []
        return [f"{len(beyond)} tokens of tokenizer.json, {self.name(min(beyond))} the first, have no row in the "
                f"target's vocabulary of {vocab}: a prompt with one is refused"]  # fmt: skip

    def watch(self, stop: tuple[str, ...]) -> StopWatch:
        """A watcher for stop strings in one request's output."""
        return StopWatch(self.inner, stop)

    def stream(self, stop: tuple[str, ...]) -> TextStream:
        """A stream of one request's text that never shows a part of a stop string."""
        return TextStream(self.inner, stop)


class TextStream:
    """The text of one output, piece by piece. The pieces joined are the Completion's text.

    Held back until it is known: bytes of an unfinished character, and an end that may become a stop string.
    """

    def __init__(self, inner: HfTokenizer, stop: tuple[str, ...]) -> None:
        self._inner, self._stop = inner, stop
        self._stream = DecodeStream(skip_special_tokens=True)
        self._text, self._shown = "", 0

    def push(self, tokens: tuple[int, ...]) -> str:
        """The text that these tokens make certain, when none of them has ended the request."""
        self._text += "".join(self._stream.step(self._inner, t) or "" for t in tokens)
        end = max(self._shown, len(self._text) - self._open())
        piece, self._shown = self._text[self._shown : end], end
        return piece

    def finish(self, text: str) -> str:
        """The rest, given the finished request's text."""
        return text[self._shown :]

    def _open(self) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        longest = max((len(s) - 1 for s in self._stop), default=0)
        for n in range(min(longest, len(self._text)), 0, -1):
            if any(s.startswith(self._text[-n:]) for s in self._stop if len(s) > n):
                return n
        return 0


def _bos(inner: HfTokenizer, folder: Path) -> list[int]:
    """Ids before every text: the post-processor's, unless tokenizer_config.json says add_bos_token otherwise."""
    path = folder / "tokenizer_config.json"
    given = read_json(path) if path.is_file() else {}
    adds = switch(given, path, "add_bos_token", False)
    if given.get("add_bos_token") is not None and not adds:
        return []
    plain, full = (inner.encode("a", add_special_tokens=special).ids for special in (False, True))
    at = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    if at or not adds:
        return full[:at]
    token = given.get("bos_token")
    token = token.get("content") if isinstance(token, dict) else token
    found = inner.token_to_id(token) if isinstance(token, str) else None
    if found is None:
        raise EngineError(f"{path} says add_bos_token, and its bos_token {token!r} is in no vocabulary",
                          "correct one of them")  # fmt: skip
    return [found]


class StopWatch:
    """Decodes one output token by token and looks for stop strings, which may span tokens and steps."""

    def __init__(self, inner: HfTokenizer, stop: tuple[str, ...]) -> None:
        self._inner, self._stop = inner, stop
        self._stream = DecodeStream(skip_special_tokens=True)
        self._reach = max(len(s) for s in stop) - 1
        self.text = ""

    def push(self, token: int) -> tuple[int, str] | None:
        """(where the earliest stop string begins in the text, the string) once one is complete."""
        piece = self._stream.step(self._inner, token)
        if not piece:
            return None
        start = max(0, len(self.text) - self._reach)
        self.text += piece
        found = [(at, s) for s in self._stop if (at := self.text.find(s, start)) >= 0]
        return min(found, key=lambda f: f[0]) if found else None
