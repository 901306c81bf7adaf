"""The HTTP service behind the page.

Nothing in a request becomes part of a path: ids are looked up, and the files of the page are kept in memory
(Starlette's StaticFiles would open them by the path of the request).
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from pydantic import ValidationError
from starlette.middleware.trustedhost import TrustedHostMiddleware

from costcert import __version__
from costcert.compiled import cores
from costcert.errors import CostcertError
from costcert.explorer.access import Access, AccessMiddleware, cookie_name
from costcert.explorer.answers import certify_ballots, certify_picture, predict_picture
from costcert.explorer.error_handlers import add_error_handlers, sentence
from costcert.explorer.limits import Limits
from costcert.explorer.pictures import FORMATS
from costcert.explorer.queue import WorkQueue
from costcert.explorer.schemas import (
    MAX_PATCHES,
    Accuracy,
    AllCertificates,
    Certified,
    CertifyRequest,
    Health,
    ImageVotes,
    PatchFootprint,
    PatchText,
    Prediction,
    Problem,
)
from costcert.explorer.session import Session, UnknownImageError
from costcert.explorer.uploads import media_type, not_a_picture, read_body

if TYPE_CHECKING:
    from costcert.certification.deployment import Deployed

_PAGE_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FILE = {"schema": {"type": "string", "format": "binary"}}
_PICTURE_TYPES = {f"image/{kind.lower()}": _FILE for kind in FORMATS}

BallotKind = Annotated[
    str | None, Query(alias="ballots", pattern="^(hard|soft)$", description="hard or soft")
]
PatchQuery = Annotated[
    PatchText,
    Query(
        description="A square or rectangle (height x width), as in square:4 or rectangle:2x8; original:2 and "
        "original:2x4 are in pixels of the original picture."
    ),
]
OriginalSize = Annotated[
    str, Query(pattern=r"^[1-9]\d{0,4}x[1-9]\d{0,4}$", description="Height x width, as in 480x640.")
]


def create_app(
    session: Session,
    *,
    deployed: Deployed | None = None,
    access: Access | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """The service for one run; with a deployed classifier it also takes pictures."""
    limits, access = limits or Limits(), access or Access()
    image_jobs = WorkQueue(cores(), limits.waiting, limits.seconds)
    # A table of all images uses all cores, and must not delay requests about single images.
    table_jobs = WorkQueue(1, limits.waiting, limits.seconds)
    # A network uses all cores for one picture.
    model_jobs = WorkQueue(1, max(1, limits.waiting // 4), limits.seconds)
    # Bodies that are still arriving take memory too.
    uploads = asyncio.Semaphore(max(2, limits.waiting // 2))
    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem} for status in (401, 403, 404, 409, 413, 415, 422, 429, 503)
    }
    host_problem = {"description": "Wrong Host header", "content": {"text/plain": {}}}
    app = FastAPI(
        title="costcert explore",
        version=__version__,
        description="Predictions, ballots and certificates of one run.",
        # FastAPI's own documentation pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        responses={400: host_problem, **problems},
    )
    app.state.limits = limits
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=access.allowed_hosts, www_redirect=False)
    app.add_middleware(AccessMiddleware, token=access.token)
    add_error_handlers(app)
    _serve_page(app)

    @app.get("/healthz")
    async def health() -> Health:
        """Whether the service is running."""
        return Health(status="ok", version=__version__, images=len(session.votes), model=deployed is not None)

    @app.post("/session", status_code=204)
    async def keep_token(request: Request) -> Response:
        """Stores the token of this request in a cookie, which a browser sends by itself."""
        response = Response(status_code=204)
        if access.token is not None:
            name = cookie_name(request.headers.get("host", ""))
            response.set_cookie(name, access.token, httponly=True, samesite="strict")
        return response

    @app.get("/about")
    async def about() -> dict[str, Any]:
        """The run: geometry, classes, defenders."""
        return {**await image_jobs.run(session.summary), "upload": deployed is not None}

    @app.get("/images")
    async def images() -> dict[str, Any]:
        """Ids and true labels of all images."""
        return await image_jobs.run(session.images)

    @app.get("/pictures/{image:path}", response_class=Response, responses={200: {"content": _PICTURE_TYPES}})
    async def picture(image: str) -> Response:
        """The pixels that the model sees of an image."""
        session.row(image)
        if session.pictures is None or image not in session.pictures:
            raise UnknownImageError("this picture is not available: pass the data of these votes with --data")
        file = await image_jobs.run(session.pictures.file, image)
        return Response(file.content, media_type=file.media_type, headers={"cache-control": "max-age=3600"})

    @app.get("/votes/{image:path}")
    async def votes(image: str, ballots: BallotKind = None) -> ImageVotes:
        """The votes of the mutants of an image."""
        return ImageVotes(**await image_jobs.run(session.ballots, image, ballots))

    @app.get("/certificates")
    async def certificates(patch: PatchQuery, ballots: BallotKind = None) -> AllCertificates:
        """Rank and min-k of all images against one patch."""
        found = await table_jobs.run(session.certificates_of, patch, ballots)
        return AllCertificates(**found)

    @app.get("/accuracy")
    async def accuracy(patch: PatchQuery, ballots: BallotKind = None) -> Accuracy:
        """Clean and certified accuracy against one patch, for every k."""
        return Accuracy(**await table_jobs.run(session.accuracy, patch, ballots))

    @app.get("/footprint")
    async def footprint(patch: PatchQuery, original: OriginalSize) -> PatchFootprint:
        """The pixels of the model's input that a patch on an original of this size can change."""
        height, width = map(int, original.split("x"))
        return PatchFootprint(**await image_jobs.run(session.footprint, patch, (height, width)))

    @app.post("/predict", openapi_extra={"requestBody": {"required": True, "content": _PICTURE_TYPES}})
    async def predict(request: Request, k: Annotated[int, Query(ge=1, le=100)] = 5) -> Prediction:
        """The top k of a picture, and the votes of its mutants. The body is the file."""
        content = await _picture_bytes(request, deployed, limits, uploads)
        return Prediction(
            **await model_jobs.run(predict_picture, session, deployed, content, k, limits.pixels)
        )

    @app.post(
        "/certify",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": CertifyRequest.model_json_schema()},
                    **_PICTURE_TYPES,
                },
            }
        },
    )
    async def certify(
        request: Request,
        label: Annotated[int | None, Query(ge=0, lt=1 << 24, description="Only for a picture.")] = None,
        patch: Annotated[list[PatchText] | None, Query(max_length=MAX_PATCHES)] = None,
    ) -> Certified:
        """Certificates of one image: of ballots as JSON, or of a picture, whose file is the body.

        For a picture, `patch` gives the patches and `label` the label to certify, by default the predicted
        one; whether the picture shows it is not known.
        """
        if media_type(request) != "application/json":
            content = await _picture_bytes(request, deployed, limits, uploads)
            if not patch:
                raise CostcertError("a picture needs a patch to certify against: pass ?patch=square:4")
            found = await model_jobs.run(
                certify_picture, session, deployed, content, label, patch, limits.pixels
            )
        else:
            try:
                ballots = CertifyRequest.model_validate_json(await read_body(request, limits, uploads))
            except ValidationError as error:
                raise CostcertError(sentence(error.errors())) from None
            found = await image_jobs.run(certify_ballots, session, ballots)
        return Certified(**found)

    return app


async def _picture_bytes(
    request: Request, deployed: Deployed | None, limits: Limits, uploads: asyncio.Semaphore
) -> bytes:
    if media_type(request) not in _PICTURE_TYPES:
        raise HTTPException(415, not_a_picture(media_type(request)))
    if deployed is None:
        raise HTTPException(409, "no model is loaded: start costcert explore with --model")
    return await read_body(request, limits, uploads)


def _serve_page(app: FastAPI) -> None:
    responses = {
        file.name: Response(
            file.read_bytes(),
            media_type=_PAGE_TYPES[file.name.rpartition(".")[2]],
            headers={"cache-control": "no-cache"},
        )
        for file in (files("costcert.explorer") / "page").iterdir()
        if file.name.rpartition(".")[2] in _PAGE_TYPES
    }

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return responses["index.html"]

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        if name not in responses:
            raise HTTPException(404, "the page has no such file")
        return responses[name]
