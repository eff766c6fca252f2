"""Whether a server can be asked, and for which model: what waiting mends is waited for, the rest is told in a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from evalkit.backends.http.asking import body, page
from evalkit.backends.http.body import PATHS
from evalkit.backends.http.client import Client
from evalkit.backends.http.errors import RETRIABLE, Trouble, denied, redirect, short_of
from evalkit.errors import EvalkitError

MALFORMED = 3  # replies in a row that can't be read, after which a server is taken to give no others
UNLISTED = (403, 404, 405, 410, 501)  # of /v1/models: a gateway that has no such page, or not for every key


@dataclass(frozen=True, slots=True)
class Model:
    """The model's id in requests. `unlisted` says why the server does not name it itself; "" where it does."""

    id: str
    unlisted: str = ""


async def not_ready(
    client: Client, wanted: str, endpoint: str, *, starting: bool = True, told: str = ""
) -> str:  # fmt: skip
    """ "" when the model gives a token, else why not. A 200 of /health is no sign of that, nor is a list of models.

    Of a server that was there already (starting=False) a fault that no waiting mends is raised as EvalkitError: an
    address of something else, a request that is refused. `told` as in find_model.
    """
    for left in reversed(range(MALFORMED)):
        model = None
        try:
            model = await find_model(client, wanted, told=told)
            await client.ask(body(endpoint, model.id, "Hello", 1), endpoint)
        except Trouble as e:
            if starting:
                return str(e)
            if not e.again and e.after <= 0:
                raise _permanent(client, e, model, endpoint) from None
            if e.kind != "bad reply":
                return str(e)
            if not left:  # once may be a fault of the moment
                raise _permanent(client, e, model, endpoint) from None
            continue
        return ""
    raise AssertionError("unreachable")


def _permanent(client: Client, e: Trouble, model: Model | None, endpoint: str) -> EvalkitError:
    """The error of what no waiting mends. `model` is the one that was asked; None where the fault came before."""
    where, path = f"the server at {client.spec.base_url}", PATHS[endpoint]
    other = "chat" if endpoint == "completions" else "completions"
    if model is not None and e.kind in ("HTTP 404", "HTTP 405"):
        if "model" in str(e).lower() or model.id.lower() in str(e).lower():
            return EvalkitError(f"{where} does not know {model.id} ({e})", "give its name there with --served-name")
        if not model.unlisted:
            return EvalkitError(f"{where} has no {path} ({e})", f"give --endpoint {other}, where it has that")
        return EvalkitError(
            f"{where} has neither /v1/models nor {path} ({model.unlisted}, then {e})",
            f"correct --base-url: it ends before {path}; or give --endpoint {other}, where it has that alone",
        )
    fix = "correct --base-url: it must be the address of a server in OpenAI's form"
    if e.kind == "redirect":
        fix = "give that address with --base-url"
    elif e.kind == "redirect elsewhere":
        fix = "give the address behind the proxy that does so, or the key it wants (--api-key-env)"
    elif e.kind.startswith("HTTP 4") and e.kind != "HTTP 404":
        name = "--served-name, " if model is not None and model.unlisted else ""
        fix = f"look at {name}--endpoint, --extra-body and the server's log: it refuses the request"
    return EvalkitError(f"{where} can't be used ({e})", fix)


async def find_model(
    client: Client, wanted: str, pages: dict[str, Any] | None = None, *, told: str = ""
) -> Model:  # fmt: skip
    """The id under which the server knows the model. Raises Trouble while it lists none. `pages` gets its entry.

    A server without a list is asked for `told`, the name as it was given; EvalkitError where nobody gave one ("").
    """
    status, text = await page(client, "/v1/models", follow=False)
    if status == 401 or (status == 403 and not told):
        raise denied(status, client.key.words, short_of(client.key.hide(text)))
    if 300 <= status < 400:
        raise redirect(client.root, "/v1/models", text)
    words = f"/v1/models gives {f'HTTP {status}' if status else text[:120]}"
    if status in UNLISTED:
        if told:
            return Model(told, words)
        where = f"the server at {client.spec.base_url}"
        raise EvalkitError(f"{where} names no models ({words}), and no model was named",
                           "give its name there with --model or --served-name, or correct --base-url")  # fmt: skip
    if status != 200:
        again = status < 400 or status >= 500 or status in RETRIABLE
        said = "" if again or not text.strip() else f": {short_of(client.key.hide(text), 80)}"
        raise Trouble("no model" if again else f"HTTP {status}", words + said, again=again, gone=not status)
    try:
        listed = {str(m["id"]): m for m in json.loads(client.key.hide(text))["data"]}
        ids = list(listed)
    except (ValueError, KeyError, TypeError):
        what = "an HTML page" if text.lstrip()[:1] == "<" else f"{' '.join(text.split())[:60]!r}"
        raise Trouble("no model", f"/v1/models is not in OpenAI's form but {what}", again=False) from None
    if not ids:
        raise Trouble("no model", "/v1/models lists none yet")
    for same in (lambda i: i == wanted, lambda i: i.rstrip("/").split("/")[-1] == wanted.rstrip("/").split("/")[-1]):
        if hits := [i for i in ids if same(i)]:
            if pages is not None:
                pages["/v1/models"] = {n: v for n, v in listed[hits[0]].items() if n not in ("created", "permission")}
            return Model(hits[0])
    raise EvalkitError(f"the server serves {', '.join(ids[:5])}, not {wanted}",
                       f"name it: --model {ids[0]}, or --served-name {ids[0]} where only the name differs")  # fmt: skip
