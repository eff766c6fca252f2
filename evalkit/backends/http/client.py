"""One attempt at one request, with its time limits: what the wire gives, or the Trouble it had."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from evalkit.backends.http.answer import Answer, Stream, read_json, read_reply
from evalkit.backends.http.body import PATHS
from evalkit.backends.http.errors import Trouble, of_status, redirect
from evalkit.backends.http.secret import Secret
from evalkit.errors import EvalkitError
from evalkit.servers.spec import ServerSpec

CONNECT = 10.0  # seconds to reach a server that is there
AFTER_DONE = 1.0  # for a server that keeps the connection open behind its last chunk
PAGE_TIMEOUT = 15.0  # of a metrics or status page
BIGGEST = 64 << 20  # bytes of one reply


class Client:
    """HTTP to one server. Use as `async with`; one event loop, one Client."""

    def __init__(self, spec: ServerSpec, root: str, key: Secret) -> None:
        self.spec, self.root, self.key = spec, root.rstrip("/"), key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        loopback = urlsplit(self.root).hostname in ("127.0.0.1", "::1", "localhost")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.spec.concurrency + 4),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT),
            headers={"Accept": "application/json", **self.key.headers()},
            trust_env=not loopback,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, body: Mapping[str, Any], endpoint: str) -> Answer:
        """One attempt. Raises Trouble."""
        found = Stream(endpoint) if body.get("stream") else None
        try:
            async with asyncio.timeout(self.spec.request_timeout) as clock:
                async with self._post(PATHS[endpoint], body) as reply:
                    await self._good(reply, PATHS[endpoint])
                    if found is None or reply.content_type == "application/json":
                        return read_reply(read_json(await _whole(reply)), endpoint)
                    await self._stream(reply, found, clock)
        except aiohttp.ClientSSLError as e:
            raise self._untrusted(e) from None
        except aiohttp.ServerTimeoutError as e:
            raise self._broken(e) from None
        except TimeoutError:
            if found is None or not found.closed:
                raise self._late(found) from None
        except (aiohttp.ClientError, OSError) as e:
            raise self._broken(e) from None
        return found.finish()  # type: ignore[union-attr]  # only a stream gets here

    async def _stream(self, reply: aiohttp.ClientResponse, found: Stream, clock: asyncio.Timeout) -> None:
        """Reads all chunks. The first one starts the time for the others: waiting in a queue takes nothing from it."""
        loop = asyncio.get_running_loop()
        began, end = loop.time(), 0.0
        async for data in _events(reply):
            now = loop.time()
            found.take(data, now - began)
            if found.answer.chunks:
                end = end or now + self.spec.request_timeout
                clock.reschedule(min(end, now + (AFTER_DONE if found.closed else self.spec.stall_timeout)))

    def _late(self, found: Stream | None) -> Trouble:
        if found is None or not found.answer.chunks:
            return Trouble("timed out", f"no reply in {self.spec.request_timeout:g} s")
        words = f"after {found.answer.chunks} chunks nothing for {self.spec.stall_timeout:g} s"
        return Trouble("timed out", f"stalled, {words}, or not finished in {self.spec.request_timeout:g} s")

    def _broken(self, e: Exception) -> Trouble:
        words = self.key.hide(plain(e))
        if isinstance(e, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError):
            return Trouble("connection refused", words, gone=True)
        if isinstance(e, aiohttp.ClientPayloadError):
            return Trouble("stream cut", words)
        if isinstance(e, aiohttp.InvalidURL):
            return Trouble("bad address", words, again=False)
        return Trouble("connection reset", words)

    def _untrusted(self, e: aiohttp.ClientSSLError) -> EvalkitError:
        """The error of a connection without TLS, or of a certificate that nobody vouches for: no request passes it."""
        url = self.spec.base_url
        if isinstance(e, aiohttp.ClientConnectorCertificateError):
            why = getattr(e.certificate_error, "verify_message", "") or str(e.certificate_error)
            return EvalkitError(f"the certificate of {url} is not trusted ({why})",
                                "set SSL_CERT_FILE to a PEM file with its issuer's certificate (self-signed: its own), "
                                "or use the name it is made out to")  # fmt: skip
        why = str(getattr(e.os_error, "reason", "") or plain(e)).lower().replace("_", " ")
        return EvalkitError(f"{url} does not speak TLS as it should ({why})", "give http:// where it is a plain server")

    async def _good(self, reply: aiohttp.ClientResponse, path: str) -> None:
        if 300 <= reply.status < 400:
            raise redirect(self.root, path, reply.headers.get("Location", ""))
        if reply.status >= 300:
            body = (await _whole(reply)).decode("utf-8", "replace")
            raise of_status(reply.status, self.key.hide(body), reply.headers.get("Retry-After"), self.key.words)

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        assert self._session is not None
        return self._session.post(self.root + path, data=json.dumps(body).encode(), allow_redirects=False,
                                  headers={"Content-Type": "application/json"})  # fmt: skip

    async def page(
        self, path: str, body: Mapping[str, Any] | None = None, *, follow: bool = True
    ) -> tuple[int, str]:  # fmt: skip
        """(status, text) of another page; (0, why) where it could not be had. With follow=False the text of a
        redirect is where it leads to. Raises EvalkitError where no connection can be trusted."""
        assert self._session is not None
        try:
            async with asyncio.timeout(PAGE_TIMEOUT):
                call = (
                    self._session.get(self.root + path, allow_redirects=follow)
                    if body is None
                    else self._post(path, body)
                )
                async with call as reply:
                    if not follow and 300 <= reply.status < 400:
                        return reply.status, reply.headers.get("Location", "")
                    return reply.status, (await _whole(reply)).decode("utf-8", "replace")
        except aiohttp.ClientSSLError as e:
            raise self._untrusted(e) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            return 0, self.key.hide(plain(e))


def plain(e: BaseException) -> str:
    """What went wrong with a connection, without aiohttp's own words around the system's."""
    inner = getattr(e, "os_error", None)
    return str(getattr(inner, "strerror", "") or e) or type(e).__name__


async def _whole(reply: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in reply.content.iter_chunked(1 << 16):
        size += len(part)
        if size > BIGGEST:
            raise Trouble("bad reply", f"over {BIGGEST >> 20} MiB", again=False)
        parts.append(part)
    return b"".join(parts)


async def _events(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The content of each `data:` line, however the bytes were cut."""
    rest = b""
    async for part in reply.content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > BIGGEST:
            raise Trouble("bad reply", f"a line over {BIGGEST >> 20} MiB", again=False)
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()
