"""The options of `POST /encode`, the same in the query, in form fields and in JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from foveal.engine.items import Wishes
from foveal.errors import InvalidRequest, ModelNotFound
from foveal.families.spec import ModelSpec
from foveal.types import DType, Output, OutputKind

COLOURS = {"white": (255, 255, 255), "black": (0, 0, 0)}


def _no_bool(value: object) -> object:
    """JSON's true is no number."""
    if isinstance(value, bool):
        raise ValueError("Input should be a whole number")
    return value


Pixels = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=10**12)]
Priority = Annotated[int, BeforeValidator(_no_bool), Field(ge=-(10**6), le=10**6)]
Colour = Annotated[str, StringConstraints(pattern=r"^(white|black|#[0-9A-Fa-f]{6})$")]


class Options(BaseModel):
    """What a caller may ask for. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(None, description="the served model's name; another is 404")
    output: OutputKind | None = Field(None, description="rows for the language model, or one pooled row")
    dtype: DType | None = Field(None, description="of the answer; default: the model's")
    normalize: bool = Field(False, description="unit length; pooled only")
    min_pixels: Pixels | None = Field(None, description="enlarge smaller pictures to this area")
    max_pixels: Pixels | None = Field(None, description="shrink larger pictures to this area")
    background: Colour = Field("white", description="under transparent parts: white, black or #rrggbb")
    oversize: Literal["reject", "downscale"] = Field("reject", description="for pictures above --max-image-tokens")
    encoding_format: Literal["base64", "float"] = Field("base64", description="of embeddings in JSON answers")
    priority: Priority = Field(0, description="larger first")
    deliver: Literal["answer", "hold"] = Field(
        "answer", description="hold: keep the rows for GET /embeddings/KEY instead of answering them; tokens only"
    )


def read_options(*sources: Mapping[str, Any]) -> Options:
    """Options from the query and the body; later sources win. Raises InvalidRequest naming the option.

    JSON's null is as if the option were not there, as with OpenAI, whatever its name.
    """
    given = {name: value for source in sources for name, value in source.items() if value is not None}
    # the first one is enough: a body may name millions
    if (unknown := next((name for name in given if name not in Options.model_fields), None)) is not None:
        known = ", ".join(Options.model_fields)
        raise InvalidRequest(f"there is no option {unknown[:100]!r}; options are {known}", param=unknown[:100])
    try:
        return Options.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else None
        raise InvalidRequest(_sentence(name, first["msg"]), param=name) from None


def _sentence(name: str | None, message: str) -> str:
    if name == "background":
        return "background: say white, black or #rrggbb"
    return f"{name}: {re.sub('^Value error, ', '', message)}"


def wishes_of(options: Options, spec: ModelSpec) -> Wishes:
    """What the engine is asked for; raises ModelNotFound or InvalidRequest."""
    if options.model is not None and options.model != spec.name:
        raise ModelNotFound(f"this server serves {spec.name!r}, not {options.model!r}; see /v1/models", param="model")
    kind = options.output or spec.default_output
    if kind not in spec.outputs:
        raise InvalidRequest(f"output: {spec.name} has {', '.join(spec.outputs)}, not {kind}", param="output")
    if options.normalize and kind != "pooled":
        raise InvalidRequest("normalize: only pooled embeddings can be; add output=pooled", param="normalize")
    if options.min_pixels and options.max_pixels and options.min_pixels > options.max_pixels:
        raise InvalidRequest("min_pixels is above max_pixels; swap them or drop one", param="min_pixels")
    if options.deliver == "hold" and kind != "tokens":
        raise InvalidRequest("deliver: only token rows are held for an LLM server; add output=tokens", param="deliver")
    _check_limits(options, spec)
    return Wishes(
        output=Output(kind, options.dtype or spec.dtype, options.normalize),
        min_pixels=options.min_pixels,
        max_pixels=options.max_pixels,
        background=COLOURS.get(options.background) or _rgb(options.background),
        downscale=options.oversize == "downscale",
        priority=options.priority,
        chose_dtype=options.dtype is not None,
    )


def _check_limits(options: Options, spec: ModelSpec) -> None:
    """Refuse a limit that this model's resize rule cannot follow: ignored, it would look obeyed."""
    rule = spec.rule
    for name, asked, own in (
        ("min_pixels", options.min_pixels, rule.min_pixels),
        ("max_pixels", options.max_pixels, rule.max_pixels),
    ):
        if asked is None or own is not None:
            continue
        if rule.fixed_size is None:
            raise InvalidRequest(f"{name}: {spec.name} has no such limit; drop it, or send max_pixels", param=name)
        height, width = rule.fixed_size
        raise InvalidRequest(f"{name}: {spec.name} resizes every picture to {width} x {height}; drop it", param=name)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
