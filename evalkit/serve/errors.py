"""What a request is told when it is refused, in OpenAI's form of an error."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A refusal: HTTP status, one line, and where it helps the field and a code for programs."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after
        self.message = " ".join(message.split())
        super().__init__(self.message)

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        found = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, status_code=self.status, headers=self.headers)


BUG = ApiError(500, "the server made a mistake; its log names the place")
CUT = ApiError(503, "the server has stopped before this was done; ask again", code="cut", retry_after=5)


def install(app: FastAPI) -> None:
    """Every error of the app in this form; what nobody foresaw is a 500 without a word of its inside."""

    async def refused(_: Request, e: Exception) -> JSONResponse:
        assert isinstance(e, ApiError)
        return e.response()

    async def invalid(_: Request, e: Exception) -> JSONResponse:
        assert isinstance(e, RequestValidationError)
        return from_validation(e).response()

    async def http(request: Request, e: Exception) -> JSONResponse:
        assert isinstance(e, HTTPException)
        said = {404: f"there is no {request.url.path} here", 405: f"{request.url.path} does not take {request.method}"}
        return ApiError(e.status_code, said.get(e.status_code, str(e.detail))).response()

    async def broken(_: Request, e: Exception) -> JSONResponse:
        return BUG.response()

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, broken)


def from_validation(e: RequestValidationError) -> ApiError:
    """The first thing wrong with a body, in one line; values are not repeated."""
    first = e.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}")
    where = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith(("function-", "list[")))
    message = str(first["msg"]).removeprefix("Value error, ")
    return ApiError(400, f"{where}: {message}" if where else message, param=where or None)
