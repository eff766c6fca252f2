"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from evalkit.serve import errors
from evalkit.serve.answering import answer
from evalkit.serve.guard import Guard
from evalkit.serve.jobs import chat_job, completion_job
from evalkit.serve.metrics import CONTENT_TYPE, Page
from evalkit.serve.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from evalkit.serve.service import Json, Service
from evalkit.serve.stats import mtp_stats


def make_app(service: Service) -> Guard:
    """The ASGI app, behind its guard. The engine's thread is started and ended with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await service.worker.close()

    app = FastAPI(title="evalkit serve", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    errors.install(app)
    _add_information(app, service)
    _add_tokenizer(app, service)

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await answer(service, await completion_job(service, body), request)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        return await answer(service, await chat_job(service, body), request)

    settings = service.settings
    return Guard(app, api_key=settings.api_key, max_body=settings.max_body, refuse=service.refuse)


def _add_information(app: FastAPI, service: Service) -> None:
    page = Page(service.settings.name, service.worker.snapshot)

    @app.get("/health")
    async def health() -> JSONResponse:
        said = service.trouble
        return JSONResponse({"status": said or "ok"}, status_code=503 if said else 200)

    @app.get("/version")
    async def version() -> Json:
        return {"version": metadata.version("evalkit")}

    @app.get("/v1/models")
    async def models() -> Json:
        model = {"id": service.settings.name, "object": "model", "created": service.created, "owned_by": "evalkit",
                 "max_model_len": service.context, "evalkit": service.about}  # fmt: skip
        return {"object": "list", "data": [model]}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(page.render(), headers={"Content-Type": CONTENT_TYPE})

    @app.get("/debug/mtp_stats")
    async def debug() -> Json:
        return mtp_stats(service.worker.snapshot())


def _add_tokenizer(app: FastAPI, service: Service) -> None:
    """vLLM's tokenizer routes. lm-eval finds them, and then needs no tokenizer of its own."""

    @app.get("/tokenizer_info")
    async def info() -> Json:
        names = {i: text for text, i in service.tokenizer.special.items()}
        eos = next((names[i] for i in service.eos if i in names), None)
        return {"tokenizer_class": "evalkit", "eos_token": eos, "bos_token": None, "pad_token": None}

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> Json:
        (ids,) = await service.encode([body.prompt])
        return {"count": len(ids), "max_model_len": service.context, "tokens": ids}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> Json:
        service.check_ids(body.tokens, "tokens")
        return {"prompt": await asyncio.to_thread(service.tokenizer.decode, body.tokens)}
