"""Every knob: name, unit, default, check. The only reader of the environment.

A setting is a flag (`--max-body-bytes`), a variable (`FOVEAL_MAX_BODY_BYTES`) and a key of the `--config` file
(`max_body_bytes`); flag over variable over file. Sizes take suffixes: 512MiB, 2GB.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)

from foveal.errors import ConfigurationError
from foveal.setting_sources import PREFIX, Collected, Sources, declare_flags, read_keys, sentences
from foveal.setting_types import BearerKey, Count, Host, Origin, Size, WebUrl, hosts, split, split_each

REPEATABLE = ("api_key", "url_allow_host", "llm_url", "sglang_register_url", "sglang_allow_host", "cors_origin")


class Settings(BaseModel):
    """The effective settings of one server, frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _sources: Sources = PrivateAttr(default_factory=Sources)

    model: str = Field("builtin:tiny", description="checkpoint folder, hub id or builtin:NAME")
    revision: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="branch, tag or commit of a hub id; default: its main branch"
    )
    served_model_name: str | None = Field(None, description="name in answers; default: the model's own")
    load_format: Literal["auto", "dummy"] = Field("auto", description="dummy: random weights for any config")
    host: Host = Field("127.0.0.1", description="address to listen on; 0.0.0.0: all of IPv4, ::: all of both families")
    port: int = Field(8000, ge=0, le=65535, description="0 picks a free one and prints it")
    device: str = Field("auto", description="auto, cpu, cuda, or a list such as cuda:0,1")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="compute dtype; auto: the checkpoint's on a GPU, float32 on the CPU"
    )
    cpu_workers: Count = Field(1, description="workers with --device cpu")
    cpu_threads: int = Field(0, ge=0, description="torch threads of a CPU worker; 0: cores / workers")
    prep_workers: int = Field(
        0,
        ge=0,
        description="processes that decode and resize; 0: one per core, from 2 to 16. Large pictures hold all but 1",
    )
    token_budgets: Annotated[tuple[Count, ...], BeforeValidator(split)] = Field(
        (), description="ladder of token budgets, e.g. 64,128,256; empty: inferred"
    )
    capture: Literal["all", "lazy", "off"] = Field(
        "all", description="CUDA graphs: all from the start, each when first asked for, or none"
    )
    graph_reserve_bytes: Size = Field(2 << 30, description="device memory that graphs leave free")
    max_items_per_pack: Count = Field(64, description="images in one pack")
    max_wait_ms: float = Field(0.0, ge=0, description="wait this long to collect more before packing")
    max_body_bytes: Annotated[Size, Field(ge=1)] = Field(64 << 20, description="bytes of one request body")
    max_images_per_request: Count = Field(64, description="images in one request")
    max_image_pixels: Count = Field(64_000_000, description="width x height of one image as sent")
    max_image_tokens: Count = Field(16_384, description="tokens of one image")
    max_queue_tokens: Count = Field(262_144, description="tokens admitted and not yet encoded")
    max_inflight_bytes: Size = Field(2 << 30, description="bodies, patch rows and embeddings of open requests")
    cache_bytes: Size = Field(1 << 30, description="encoder cache; 0 turns it off")
    handover_bytes: Size = Field(
        1 << 30, description="embeddings held for LLM servers until they are fetched (deliver=hold); 0 turns it off"
    )
    handover_seconds: float = Field(120.0, gt=0, description="time for which an embedding is held")
    ec_shared_storage: Path | None = Field(
        None, description="folder where held embeddings are published for vLLM's ECExampleConnector"
    )
    ec_shared_storage_seconds: float = Field(600.0, gt=0, description="age at which a published file is removed")
    ec_shared_storage_bytes: Annotated[Size, Field(ge=1)] = Field(
        4 << 30, description="bytes of published files; the oldest are removed for new ones"
    )
    request_timeout_seconds: float = Field(60.0, gt=0, description="deadline of a request that names none, and its cap")
    prep_memory_bytes: Size = Field(2 << 30, description="memory that one prep process takes for one image, at most")
    prep_timeout_seconds: float = Field(20.0, gt=0, description="time to read, decode and resize one image")
    worker_start_seconds: float = Field(
        600.0, gt=0, description="a worker that starts and says nothing for so long is ended and started again"
    )
    worker_timeout_seconds: float = Field(
        10.0, gt=0, description="a pack that takes so long, and a few times longer than expected, ends its worker"
    )
    drain_seconds: float = Field(30.0, ge=0, description="time to finish accepted work after SIGTERM")
    api_key: Annotated[tuple[SecretStr, ...], BeforeValidator(split)] = Field(
        (), description="accepted bearer keys; repeatable"
    )
    api_key_file: Path | None = Field(None, description="file with one accepted key a line")
    key_requests_per_minute: int = Field(0, ge=0, description="requests of one key, else 429; 0: no limit")
    key_tokens_per_minute: int = Field(0, ge=0, description="tokens encoded for one key, else 429; 0: no limit")
    allow_urls: bool = Field(False, description="fetch images that requests name by http(s) URL")
    url_allow_host: Annotated[tuple[str, ...], BeforeValidator(hosts)] = Field(
        (),
        description="fetch from these hosts only: HOST, HOST:PORT (may be internal), *.DOMAIN, or * for all public "
        "ones; repeatable; empty: all public hosts",
    )
    url_timeout_seconds: float = Field(10.0, gt=0, description="time to fetch one URL, redirects included")
    url_max_redirects: int = Field(5, ge=0, description="redirects of one URL that are followed")
    url_max_per_host: Count = Field(8, description="URLs fetched from one host at a time")
    llm_url: Annotated[tuple[WebUrl, ...], BeforeValidator(split_each)] = Field(
        (), description="LLM server that takes embeddings, http://HOST:PORT; repeatable; turns the gateway on"
    )
    llm_handover: Literal["parts", "keys"] = Field(
        "parts", description="parts: embeddings inside of requests; keys: names by which the LLM server fetches them"
    )
    llm_model: Annotated[str | None, Field(min_length=1)] = Field(
        None, description="name of the LLM servers' model where it differs from the one served here; default: the same"
    )
    llm_api_key: BearerKey | None = Field(None, description="bearer key for the LLM servers; default: the caller's own")
    llm_timeout_seconds: float = Field(600.0, gt=0, description="longest silence of an LLM server within an answer")
    llm_max_requests: Count = Field(1024, description="requests open at the LLM servers; more are told to wait")
    cors_origin: Annotated[tuple[Origin, ...], BeforeValidator(split_each)] = Field(
        (), description="web pages of this origin may call, https://HOST, or * for all; repeatable; default: none"
    )
    ready_quorum: Count = Field(1, description="workers that must be ready for /ready")
    otel_endpoint: WebUrl | None = Field(
        None, description="send OpenTelemetry traces to this OTLP/HTTP collector, e.g. http://collector:4318"
    )
    sglang: bool = Field(False, description="encode for SGLang servers with --language-only, under /sglang")
    sglang_register_url: Annotated[tuple[WebUrl, ...], BeforeValidator(split_each)] = Field(
        (), description="SGLang's encoder bootstrap, e.g. http://language:8997, to register with; repeatable"
    )
    sglang_public_url: WebUrl | None = Field(
        None, description="URL that SGLang reaches /sglang of this server under; default: http://HOST:PORT/sglang"
    )
    sglang_allow_host: Annotated[tuple[str, ...], BeforeValidator(split_each)] = Field(
        (), description="push embeddings there too: host, address or network; default: to the caller only; repeatable"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["json", "text"] = Field("json", description="one JSON object a line, or plain text")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        budgets = self.token_budgets
        if list(budgets) != sorted(set(budgets)):
            raise ValueError(f"token_budgets {list(budgets)} must ascend without repeats")
        if budgets and budgets[-1] > self.max_queue_tokens:
            raise ValueError(
                f"token_budgets go to {budgets[-1]}, more than max_queue_tokens {self.max_queue_tokens} lets in"
            )
        if self.max_queue_tokens < self.max_image_tokens:
            raise ValueError(
                f"max_queue_tokens {self.max_queue_tokens} is below max_image_tokens {self.max_image_tokens}: the "
                "largest image could never be admitted; raise the one or lower the other"
            )
        if self.prep_memory_bytes < 3 * self.max_image_pixels:
            raise ValueError(
                f"prep_memory_bytes {self.prep_memory_bytes} is below 3 bytes for each of max_image_pixels "
                f"{self.max_image_pixels}: the largest image could never be decoded; raise the one or lower the other"
            )
        if (self.key_requests_per_minute or self.key_tokens_per_minute) and not (self.api_key or self.api_key_file):
            raise ValueError(
                "key_requests_per_minute and key_tokens_per_minute are quotas of keys, and there are none: set api_key "
                "or api_key_file, or leave the quotas out"
            )
        if self.ec_shared_storage and self.ec_shared_storage_seconds < self.handover_seconds:
            raise ValueError(
                f"ec_shared_storage_seconds {self.ec_shared_storage_seconds:g} is below handover_seconds "
                f"{self.handover_seconds:g}: files would go before the time that they are held for; raise the one or "
                "lower the other"
            )
        if "*" in self.cors_origin and len(self.cors_origin) > 1:
            raise ValueError("cors_origin names * beside others: * alone is all origins; leave it out, or the others")
        if self.max_inflight_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_inflight_bytes {self.max_inflight_bytes} is below max_body_bytes {self.max_body_bytes}: the "
                "largest body could never be admitted; raise the one or lower the other"
            )
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """All accepted keys; raises ConfigurationError when the key file cannot be read."""
        given = tuple(key.get_secret_value().strip() for key in self.api_key)
        if "" in given:
            raise ConfigurationError("--api-key: an empty key would let everyone in; leave it out or give one")
        if self.api_key_file is None:
            return given
        return given + read_keys(self.api_key_file, self.explain("--api-key-file"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is to be told about how the settings were given."""
        return self._sources.warnings

    def explain(self, message: str) -> str:
        """A message that names flags, with the variable or the file's key where a value came from there."""
        return self._sources.explain(message)

    def shown(self) -> dict[str, Any]:
        """The settings as they may be printed: secrets masked."""
        return self.model_dump(mode="json")


def process_environment() -> dict[str, str]:
    """The variables that child processes inherit, without our own settings: those reach them as messages."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per setting, and --config."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings")
    declare_flags(parser, Settings.model_fields, REPEATABLE)


def read_settings(args: argparse.Namespace) -> Settings:
    """Settings from parsed flags, the environment and the file; raises ConfigurationError with a sentence."""
    collected = Collected(Settings.model_fields)
    collected.add_flags(vars(args))
    collected.add_variables(os.environ)
    if (named := _config(args)) is not None:
        collected.add_file(named)
    sources = collected.sources
    try:
        settings = Settings.model_validate(collected.values)
    except ValidationError as error:
        raise ConfigurationError(sentences(error, sources)) from None
    settings._sources = sources
    return settings


def log_format_asked_for(args: argparse.Namespace) -> Literal["json", "text"]:
    """The log's form before settings are read, which may be refused: by flag or variable, else what goes without."""
    asked = getattr(args, "log_format", None) or os.environ.get(PREFIX + "LOG_FORMAT", "").strip()
    return "text" if asked == "text" else "json"


def _config(args: argparse.Namespace) -> Path | None:
    """The file of settings; raises ConfigurationError for one that is not there."""
    variable = os.environ.get(PREFIX + "CONFIG", "")
    path: Path | None = args.config or (Path(variable) if variable.strip() else None)
    if path is not None and not path.is_file():
        source = "--config" if args.config else PREFIX + "CONFIG"
        raise ConfigurationError(f"{source} {path}: there is no such file")
    return path
