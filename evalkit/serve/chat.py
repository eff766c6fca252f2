"""Messages to a prompt: the model folder's own template, a file's, or plain joining. No template is made up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evalkit.errors import EvalkitError
from evalkit.serve.errors import ApiError
from evalkit.serve.schema import kind

PLAIN = "plain"
ROLES = ("system", "developer", "user", "assistant", "tool", "function")  # OpenAI's


class ChatTemplate:
    """One way to write messages down; `source` says where it came from, "" where there is none."""

    def __init__(self, folder: Path, chosen: str | None = None) -> None:
        self._tokens, text, self.source = _special(folder), "", ""
        if chosen == PLAIN:
            self.source = PLAIN
        elif chosen:
            text, self.source = Path(chosen).read_text(encoding="utf-8"), Path(chosen).name
        elif (folder / "chat_template.jinja").is_file():
            text, self.source = (folder / "chat_template.jinja").read_text(encoding="utf-8"), "chat_template.jinja"
        elif found := _config(folder).get("chat_template"):
            if not isinstance(found, str):
                raise EvalkitError("tokenizer_config.json has several chat templates", "name one with --chat-template")
            text, self.source = found, "tokenizer_config.json"
        self._template = _compile(text, self.source) if text else None

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any], add_generation_prompt: bool = True
    ) -> str:
        """The text of the prompt. Raises ApiError for messages that cannot be written down."""
        said = [_message(i, m) for i, m in enumerate(messages)]
        if self.source == PLAIN:
            return "\n\n".join(m["content"] for m in said)
        if self._template is None:
            raise ApiError(400, "this model has no chat template; use /v1/completions, or start evalkit serve with "
                           "--chat-template FILE or plain", code="no_chat_template")  # fmt: skip
        try:
            return self._template.render(
                {**self._tokens, **extra, "messages": said, "add_generation_prompt": add_generation_prompt}
            )
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError, OverflowError, MemoryError) as e:
            raise ApiError(400, f"the chat template refuses these messages: {e}", param="messages") from None


def _message(i: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its content as one text."""
    role, content = message.get("role"), message.get("content")
    where = f"messages.{i}"
    if role not in ROLES:
        found = "is missing" if role is None else f"is {role[:40]!r}" if isinstance(role, str) else f"is {kind(role)}"
        raise ApiError(400, f"{where}.role {found}; use one of {', '.join(ROLES)}", param=f"{where}.role")
    if content is None:
        if role != "assistant" or not message.get("tool_calls"):  # a call of tools may come without words
            raise ApiError(400, f"{where}.content is missing", param=f"{where}.content")
        content = ""
    if isinstance(content, list):
        if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content):
            raise ApiError(400, f"{where}.content has a part that is not text", param=f"{where}.content")
        content = "".join(p["text"] for p in content)
    if not isinstance(content, str):
        raise ApiError(
            400, f"{where}.content is {kind(content)}, it must be a text or a list of texts", param=f"{where}.content"
        )
    return {**message, "content": content}


def _compile(text: str, source: str) -> jinja2.Template:
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    env.globals["raise_exception"] = _raise
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return env.from_string(text)
    except jinja2.TemplateSyntaxError as e:
        raise EvalkitError(f"the chat template {source} cannot be read: {e}", "mend it") from None


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise EvalkitError(f"{path} is not JSON ({e})", "restore the file") from None
    return found if isinstance(found, dict) else {}


def _special(folder: Path) -> dict[str, str]:
    """bos_token, eos_token ... as templates know them."""
    found = {}
    for name, value in _config(folder).items():
        if name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            text = value.get("content") if isinstance(value, dict) else value
            found[name] = text if isinstance(text, str) else ""
    return found
