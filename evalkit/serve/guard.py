"""What stands before the app: key, content type, size of the body, drain, and an end to what nobody foresaw."""

from __future__ import annotations

import asyncio
import hmac
import sys
import traceback
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalkit.serve.errors import BUG, CUT, ApiError

OPEN = ("/health", "/metrics", "/debug/mtp_stats")  # counts alone: monitors read them without a key
DISCARD = 64 * 2**20  # of a body that is too large: a client reads the answer only after it has sent it


class Guard:
    """ASGI middleware. `refuse` gives the error for new work, or None while it is welcome."""

    def __init__(self, app: ASGIApp, *, api_key: str, max_body: int, refuse: Callable[[], ApiError | None]) -> None:
        self._app, self._key, self._max_body, self._refuse = app, api_key.encode(), max_body, refuse
        self.working = 0  # requests whose body has been taken and whose answer is not yet sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = taken = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self._check(scope)
            if scope["method"] == "POST":
                receive = await self._body(scope, receive)
                if (refusal := self._refuse()) is not None:  # its body is read first, so that the client hears of it
                    raise refusal
                taken = True
                self.working += 1
            await self._app(scope, receive, sending)
        except ApiError as e:
            await e.response()(scope, receive, send)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:  # the server ends, and this one was too slow
            if not started:
                await CUT.response()(scope, receive, send)
            raise
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            said = f"{type(e).__name__} in {scope['path']} at {last.filename}:{last.lineno}"
            print(f"error: {said}; this is a bug of evalkit", file=sys.stderr, flush=True)
            if not started:
                await BUG.response()(scope, receive, send)
        finally:
            self.working -= taken

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if self._key and scope["path"] not in OPEN:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
                raise ApiError(
                    401, "no key, or a wrong one; send it as Authorization: Bearer KEY", code="invalid_api_key"
                )
        if scope["method"] != "POST":
            return
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise ApiError(415, "the body must be JSON, with the header Content-Type: application/json")

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        """The body, read up to the limit, and then handed on in one piece."""
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= self._max_body:
                parts.append(part)
            elif size > self._max_body + DISCARD:
                break
            else:
                parts.clear()
        if size > self._max_body:
            raise ApiError(413, f"the body has more than {self._max_body} bytes", code="body_too_large")
        body: bytes | None = b"".join(parts)
        try:
            body.decode()  # json would take a guess, UTF-16 for one
        except UnicodeDecodeError as e:
            raise ApiError(400, f"the body is not UTF-8: byte {e.start} is 0x{body[e.start]:02x}") from None

        async def again() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message: Message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        return again
