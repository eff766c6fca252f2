"""What a request is told when it is refused, in OpenAI's form of an error."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from evalkit.serve.schema import ABOUT_FIELD, kind

NO_OBJECT = "the body is not a JSON object"
WANTED = {  # pydantic's name of an error -> what the value must be
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "string_type": "a text",
    "bool_type": "true or false", "list_type": "a list", "dict_type": "an object", "model_type": "an object",
    "model_attributes_type": "an object",
}  # fmt: skip
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
        if e.status_code == 400 and e.__cause__ is not None:  # from FastAPI's reading of the body
            return ApiError(400, _unread(e.__cause__)).response()
        return ApiError(e.status_code, said.get(e.status_code, str(e.detail))).response()

    async def broken(_: Request, e: Exception) -> JSONResponse:
        return BUG.response()

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, broken)


def from_validation(e: RequestValidationError) -> ApiError:
    """The first thing wrong with a body, in one line and plain words; values are not repeated."""
    first = e.errors()[0]
    place, limits = first["loc"], first.get("ctx") or {}
    if first["type"] == "json_invalid":
        said = limits.get("error", "it cannot be read")
        return ApiError(400, f"the body is not JSON: {said} (character {place[-1]})")
    if first["type"] == ABOUT_FIELD:
        return ApiError(400, str(first["msg"]), param=limits["field"])
    where, message = ".".join(map(str, place[1:])), _plain(first["type"], first.get("input"), limits)
    message = message or str(first["msg"]).removeprefix("Value error, ")
    if not where and first["type"] != "value_error":
        message = "the body is empty; send a JSON object" if first["type"] == "missing" else NO_OBJECT
    return ApiError(400, f"{where} {message}" if where else message, param=where or None)


def _plain(name: str, given: Any, limits: dict[str, Any]) -> str:
    """What pydantic's error of this name says, of a value that was given; '' for one that has its own words."""
    if name in WANTED:
        return f"is {kind(given)}, it must be {WANTED[name]}"
    return {
        "missing": "is missing",
        "extra_forbidden": "is unknown; leave it away",
        "greater_than_equal": f"is too small, it must be at least {limits.get('ge')}",
        "less_than_equal": f"is too large, it must be at most {limits.get('le')}",
        "too_short": "is an empty list",
        "too_long": f"has too many entries, at most {limits.get('max_length')} are taken",
    }.get(name, "")


def _unread(cause: BaseException | None) -> str:
    """Why a body that has come could not be read, by what its reader raised."""
    if isinstance(cause, RecursionError):
        return "the body has too many lists or objects inside each other"
    if isinstance(cause, ValueError) and "integer string conversion" in str(cause):  # of Python, with its own advice
        return "the body has a number of too many digits"
    return f"the body cannot be read: {cause}"
