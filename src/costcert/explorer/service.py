"""The HTTP service: what the page asks, and anybody else who may.

Nothing in a request ever becomes part of a path: ids are looked up, and files of the page are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import ValidationError

from costcert import __version__
from costcert.compiled import cores
from costcert.errors import CostcertError
from costcert.explorer.access import Access, AccessMiddleware, cookie_name
from costcert.explorer.answers import certified_ballots, certified_picture, predicted
from costcert.explorer.counters import Counters
from costcert.explorer.error_handlers import answer_in_sentences, sentence
from costcert.explorer.pictures import FORMATS
from costcert.explorer.queue import Room, WorkQueue
from costcert.explorer.schemas import (
    MOST_PATCHES,
    Accuracy,
    AllCertificates,
    BallotsQuestion,
    Certified,
    Health,
    ImageVotes,
    PatchText,
    Prediction,
    Problem,
)
from costcert.explorer.session import Session, UnknownImageError
from costcert.explorer.uploads import Limits, body_of, media_type

if TYPE_CHECKING:
    from costcert.certification.deployment import Deployed

_MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PICTURES = {f"image/{kind.lower()}": {"schema": {"type": "string", "format": "binary"}} for kind in FORMATS}

ViewName = Annotated[str | None, Query(alias="ballots", pattern="^(hard|soft)$", description="hard or soft")]
OnePatch = Annotated[PatchText, Query(description="A square or rectangle, as in square:4 or rectangle:2x8.")]


def create_app(
    session: Session,
    *,
    deployed: Deployed | None = None,
    access: Access | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """The service over one run; with a deployed classifier it also takes pictures."""
    limits, access, counters = limits or Limits(), access or Access(), Counters()
    arithmetic = WorkQueue(cores(), limits.waiting, limits.seconds)
    # A table of all images keeps all cores busy, and must not keep single images waiting.
    tables = WorkQueue(1, limits.waiting, limits.seconds)
    # A network keeps all cores busy with one picture.
    asking = WorkQueue(1, max(1, limits.waiting // 4), limits.seconds)
    # Bodies on their way are memory too.
    arriving = Room(max(2, limits.waiting // 2))
    problems: dict[int | str, dict[str, Any]] = {
        code: {"model": Problem} for code in (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)
    }
    app = FastAPI(
        title="costcert explore",
        version=__version__,
        description="Predictions, ballots and certificates of one run.",
        # The usual pages for these fetch scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        responses=problems,
    )
    app.state.limits = limits
    app.add_middleware(AccessMiddleware, access=access, counters=counters)
    answer_in_sentences(app)
    _serve_page(app)

    @app.get("/healthz")
    async def health() -> Health:
        """Whether the service is alive."""
        return Health(status="ok", version=__version__, images=len(session.votes), model=deployed is not None)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counters, in the format that Prometheus reads."""
        return PlainTextResponse(counters.text(), media_type="text/plain; version=0.0.4")

    @app.post("/session", status_code=204)
    async def keep_token(request: Request) -> Response:
        """Keeps the token of this request in a cookie, so that a browser brings it by itself."""
        answer = Response(status_code=204)
        if access.token is not None:
            name = cookie_name(request.headers.get("host", ""))
            answer.set_cookie(name, access.token, httponly=True, samesite="strict")
        return answer

    @app.get("/about")
    async def about() -> dict[str, Any]:
        """What is shown: geometry, classes, defenders."""
        return {**await arithmetic.run(session.summary), "upload": deployed is not None}

    @app.get("/images")
    async def images() -> dict[str, Any]:
        """Ids and true labels of all images."""
        return await arithmetic.run(session.images)

    @app.get("/pictures/{image:path}", response_class=Response, responses={200: {"content": _PICTURES}})
    async def picture(image: str) -> Response:
        """What the model saw of an image."""
        session.row(image)
        if session.pictures is None or image not in session.pictures:
            raise UnknownImageError("the pictures of these votes are not at hand")
        file = await arithmetic.run(session.pictures.file, image)
        return Response(file.content, media_type=file.media_type, headers={"cache-control": "max-age=3600"})

    @app.get("/votes/{image:path}")
    async def votes(image: str, ballots: ViewName = None) -> ImageVotes:
        """How the mutants of an image voted."""
        return ImageVotes(**await arithmetic.run(session.ballots, image, ballots))

    @app.get("/certificates")
    async def certificates(patch: OnePatch, ballots: ViewName = None) -> AllCertificates:
        """Rank and min-k of all images against one patch."""
        found = await tables.run(session.certificates_of, patch, ballots)
        return AllCertificates(**found)

    @app.get("/accuracy")
    async def accuracy(patch: OnePatch, ballots: ViewName = None) -> Accuracy:
        """Clean and certified accuracy against one patch, for every k."""
        return Accuracy(**await tables.run(session.accuracy, patch, ballots))

    @app.post("/predict", openapi_extra={"requestBody": {"required": True, "content": _PICTURES}})
    async def predict(request: Request, k: Annotated[int, Query(ge=1, le=100)] = 5) -> Prediction:
        """The top k of a picture, and how its mutants voted. The body is the file."""
        content = await _picture_bytes(request, deployed, limits, arriving)
        return Prediction(**await asking.run(predicted, session, deployed, content, k, limits.pixels))

    @app.post(
        "/certify",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/BallotsQuestion"}},
                    **_PICTURES,
                },
            }
        },
    )
    async def certify(
        request: Request,
        label: Annotated[int | None, Query(ge=0, lt=1 << 24, description="Of a picture.")] = None,
        patch: Annotated[list[PatchText] | None, Query(max_length=MOST_PATCHES)] = None,
    ) -> Certified:
        """Certificates of one image: of ballots as JSON, or of a picture, whose file is the body.

        For a picture `patch` says against what, and `label` which label is to stay in the top k: by default
        the one that it is taken for.
        """
        if media_type(request) != "application/json":
            content = await _picture_bytes(request, deployed, limits, arriving)
            if not patch:
                raise CostcertError("say against which patch, as in ?patch=square:4")
            found = await asking.run(
                certified_picture, session, deployed, content, label, patch, limits.pixels
            )
        else:
            try:
                question = BallotsQuestion.model_validate_json(await body_of(request, limits, arriving))
            except ValidationError as error:
                raise CostcertError(sentence(error.errors())) from None
            found = await arithmetic.run(certified_ballots, session, question)
        return Certified(**found)

    _document(app, BallotsQuestion)
    return app


async def _picture_bytes(
    request: Request, deployed: Deployed | None, limits: Limits, arriving: Room
) -> bytes:
    if media_type(request) not in _PICTURES:
        raise HTTPException(415, f"send a picture with its Content-Type: {', '.join(_PICTURES)}")
    if deployed is None:
        raise HTTPException(409, "no model is loaded: start costcert explore with --model")
    return await body_of(request, limits, arriving)


def _serve_page(app: FastAPI) -> None:
    held = {
        file.name: Response(
            file.read_bytes(),
            media_type=_MEDIA[f".{file.name.rpartition('.')[2]}"],
            headers={"cache-control": "no-cache"},
        )
        for file in (files("costcert.explorer") / "page").iterdir()
        if f".{file.name.rpartition('.')[2]}" in _MEDIA
    }

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return held["index.html"]

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in held:
            raise HTTPException(404, "the page has no such part")
        return held[name]


def _document(app: FastAPI, model: type[BallotsQuestion]) -> None:
    """What is read by hand is not found by FastAPI, so its schema is added."""
    made: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        described = model.model_json_schema(ref_template="#/components/schemas/{model}")
        parts = schema.setdefault("components", {}).setdefault("schemas", {})
        parts.update(described.pop("$defs", {}))
        parts[model.__name__] = described
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
