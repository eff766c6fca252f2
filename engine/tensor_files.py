"""Tensors of a checkpoint folder, read one at a time: a safetensors file, or shards with an index.

What is read is kept by nobody here. One file is mapped at a time, and anew after every MAPPED bytes, since pages that
were read count as the process's own while they are mapped: a checkpoint of any size takes the memory of what is made
of it, and MAPPED or its largest tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.config_fields import read_json
from engine.errors import EngineError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAPPED = 32 * 2**20  # bytes
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Of a tensor that has `whole` places along `dim` (0 or 1): those from `start` up to `stop`."""

    dim: int
    start: int
    stop: int
    whole: int


class Tensors(Protocol):
    """Named tensors of which each is taken out once, whole or in part."""

    def __contains__(self, name: object, /) -> bool: ...
    def shape(self, name: str, /) -> tuple[int, ...]: ...
    def pop(self, name: str, cut: Cut | None = None, /) -> Tensor: ...
    def order(self, name: str) -> str: ...


class TensorFiles:
    """The tensors of a folder by name, each read when it is popped.

    rename: name in the files -> name here, or None for a tensor to leave out. Raises EngineError for a folder without
    safetensors, an index whose shards or tensors are not there, a tensor that is there twice, a damaged file.
    """

    def __init__(self, folder: Path, rename: Callable[[str], str | None] = lambda name: name) -> None:
        self.folder = folder
        self._open: tuple[Path, Any] | None = None
        self._read = 0  # bytes handed out of the open file
        self._where: dict[str, tuple[Path, str]] = {}
        for name, file in _listed(folder, self._handle).items():
            new = rename(name)
            if new is None:
                continue
            if new in self._where:
                raise EngineError(f"{folder} holds {name} and {self._where[new][1]}, which are the same",
                                  "keep one of them")  # fmt: skip
            self._where[new] = (file, name)

    def __contains__(self, name: object, /) -> bool:
        return name in self._where

    def names(self) -> list[str]:
        """Those not popped yet, sorted."""
        return sorted(self._where)

    def shape(self, name: str, /) -> tuple[int, ...]:
        """Of a tensor that was not popped yet, whole."""
        file, stored = self._where[name]
        return tuple(self._handle(file).get_slice(stored).get_shape())

    def pop(self, name: str, cut: Cut | None = None, /) -> Tensor:
        """The tensor, or a part of it, as stored. Raises KeyError where it is not there, EngineError where it cannot be
        read. Until the next one is popped it may be a view of the file."""
        file, stored = self._where.pop(name)
        try:
            handle = self._handle(file)
            if cut is None:
                found = handle.get_tensor(stored)
            else:
                part = slice(cut.start, cut.stop)
                found = handle.get_slice(stored)[part if cut.dim == 0 else (slice(None), part)]
        except (SafetensorError, OSError) as e:
            raise _damaged(file, e) from None
        # columns lie on all pages of their tensor
        self._read += found.nbytes * (cut.whole // max(1, cut.stop - cut.start) if cut and cut.dim else 1)
        return found

    def drop(self, names: Iterable[str]) -> None:
        """Leave these out, unread."""
        for name in list(names):
            del self._where[name]

    def order(self, name: str) -> str:
        """Sorts tensors by the file that they are in."""
        return self._where[name][0].name

    def _handle(self, file: Path) -> Any:
        if self._open is None or self._open[0] != file or self._read >= MAPPED:
            self._open, self._read = None, 0
            if not file.is_file():
                raise EngineError(f"weight file {file} does not exist", "restore the checkpoint folder")
            try:
                self._open = (file, safe_open(file, "pt"))
            except (SafetensorError, OSError) as e:
                raise _damaged(file, e) from None
        return self._open[1]


def _listed(folder: Path, handle: Callable[[Path], Any]) -> dict[str, Path]:
    """Every tensor of a folder and its file; the index and the shards have to agree."""
    index, single = folder / INDEX, folder / SINGLE
    if not index.exists():
        if not single.exists():
            _refuse_pickles(folder)
        return dict.fromkeys(handle(single).keys(), single)
    given = read_json(index).get("weight_map")
    if not isinstance(given, dict) or any(not isinstance(f, str) or Path(f).name != f for f in given.values()):
        raise EngineError(f"{index} has no weight_map of tensors to files beside it", "restore the file")
    if single.exists() and SINGLE not in given.values():  # which others would load in place of the shards
        raise EngineError(f"{folder} holds {SINGLE} beside shards, and {INDEX} does not name it",
                          "remove the one that is not the model's")  # fmt: skip
    found: dict[str, Path] = {}
    for file in sorted(set(given.values())):
        for name in handle(folder / file).keys():  # noqa: SIM118 (not a dict)
            if name in found:
                raise EngineError(f"{folder} holds {name} twice, in {found[name].name} and in {file}",
                                  "keep the one that belongs to the model")  # fmt: skip
            found[name] = folder / file
    for what, names in (("names tensors that its shards lack", given.keys() - found.keys()),
                        ("lacks tensors that its shards hold", found.keys() - given.keys())):  # fmt: skip
        if names:
            raise EngineError(f"{index} {what}, {sorted(names)[0]} among {len(names)}", "restore the checkpoint folder")
    if moved := [name for name, file in given.items() if file != found[name].name]:
        name = min(moved)
        raise EngineError(f"{index} names {given[name]} for {name}, which is in {found[name].name} ({len(moved)} such)",
                          "restore the checkpoint folder")  # fmt: skip
    return found


def _refuse_pickles(folder: Path) -> None:
    found = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern)) if folder.is_dir() else []
    if found:
        raise EngineError(f"{folder} holds its weights as a pickle ({found[0]}), which can run code when it is read",
                          "convert it where you trust it: AutoModelForCausalLM.from_pretrained(folder)"
                          ".save_pretrained(new_folder) of transformers writes safetensors")  # fmt: skip


def _damaged(file: Path, e: Exception) -> EngineError:
    return EngineError(f"weight file {file} ({file.stat().st_size} bytes) is damaged or truncated ({e})",
                       "restore it from its source")  # fmt: skip
