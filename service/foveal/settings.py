"""Every knob: name, unit, default, check. The only reader of the environment.

A setting is a flag (`--max-body-bytes`), a variable (`FOVEAL_MAX_BODY_BYTES`) and a key of the `--config` file
(`max_body_bytes`); flag over variable over file. Sizes take suffixes: 512MiB, 2GB.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from foveal.errors import ConfigurationError
from foveal.setting_types import BearerKey, Count, Size, WebUrl, folder, hosts, split, split_each


class Settings(BaseSettings):
    """The effective settings of one server, frozen."""

    model_config = SettingsConfigDict(
        env_prefix="FOVEAL_", frozen=True, extra="forbid", cli_parse_args=False, allow_inf_nan=False
    )

    model: str = Field("builtin:tiny", description="checkpoint folder, hub id or builtin:NAME")
    served_model_name: str | None = Field(None, description="name in answers; default: the model's own")
    load_format: Literal["auto", "dummy"] = Field("auto", description="dummy: random weights for any config")
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
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
    token_budgets: Annotated[tuple[Count, ...], NoDecode, BeforeValidator(split)] = Field(
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
    ec_shared_storage: Annotated[Path | None, BeforeValidator(folder)] = Field(
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
        60.0, gt=0, description="a pack that takes so much longer than predicted ends its worker"
    )
    drain_seconds: float = Field(30.0, ge=0, description="time to finish accepted work after SIGTERM")
    api_key: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(split)] = Field(
        (), description="accepted bearer keys; repeatable"
    )
    api_key_file: Path | None = Field(None, description="file with one accepted key a line")
    key_requests_per_minute: int = Field(0, ge=0, description="requests of one key, else 429; 0: no limit")
    key_tokens_per_minute: int = Field(0, ge=0, description="tokens encoded for one key, else 429; 0: no limit")
    allow_urls: bool = Field(False, description="fetch images that requests name by http(s) URL")
    url_allow_host: Annotated[tuple[str, ...], NoDecode, BeforeValidator(hosts)] = Field(
        (),
        description="fetch from these hosts only: HOST, HOST:PORT (may be internal), *.DOMAIN, or * for all public "
        "ones; repeatable; empty: all public hosts",
    )
    url_timeout_seconds: float = Field(10.0, gt=0, description="time to fetch one URL, redirects included")
    url_max_redirects: int = Field(5, ge=0, description="redirects of one URL that are followed")
    url_max_per_host: Count = Field(8, description="URLs fetched from one host at a time")
    llm_url: Annotated[tuple[WebUrl, ...], NoDecode, BeforeValidator(split_each)] = Field(
        (), description="LLM server that takes embeddings, http://HOST:PORT; repeatable; turns the gateway on"
    )
    llm_handover: Literal["parts", "keys"] = Field(
        "parts", description="parts: embeddings inside of requests; keys: names by which the LLM server fetches them"
    )
    llm_api_key: BearerKey | None = Field(None, description="bearer key for the LLM servers; default: the caller's own")
    llm_timeout_seconds: float = Field(600.0, gt=0, description="longest silence of an LLM server within an answer")
    llm_max_requests: Count = Field(1024, description="requests open at the LLM servers; more are told to wait")
    ready_quorum: Count = Field(1, description="workers that must be ready for /ready")
    otel_endpoint: WebUrl | None = Field(
        None, description="send OpenTelemetry traces to this OTLP/HTTP collector, e.g. http://collector:4318"
    )
    sglang: bool = Field(False, description="encode for SGLang servers with --language-only, under /sglang")
    sglang_register_url: Annotated[tuple[WebUrl, ...], NoDecode, BeforeValidator(split_each)] = Field(
        (), description="SGLang's encoder bootstrap, e.g. http://language:8997, to register with; repeatable"
    )
    sglang_public_url: WebUrl | None = Field(
        None, description="URL that SGLang reaches /sglang of this server under; default: http://HOST:PORT/sglang"
    )
    sglang_allow_host: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_each)] = Field(
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
        if self.max_inflight_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_inflight_bytes {self.max_inflight_bytes} is below max_body_bytes {self.max_body_bytes}: the "
                "largest body could never be admitted; raise the one or lower the other"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags arrive as init arguments, so they win; then the environment; then the file."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)

    @property
    def keys(self) -> tuple[str, ...]:
        """All accepted keys; raises ConfigurationError when the key file cannot be read."""
        given = tuple(key.get_secret_value() for key in self.api_key)
        if "" in given:
            raise ConfigurationError("--api-key: an empty key would let everyone in; leave it out or give one")
        if self.api_key_file is None:
            return given
        try:
            lines = self.api_key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--api-key-file {self.api_key_file} cannot be read: {error}") from None
        found = tuple(line.strip() for line in lines if line.strip())
        if not found:
            raise ConfigurationError(f"--api-key-file {self.api_key_file} holds no key: the server would be open")
        return given + found

    def shown(self) -> dict[str, Any]:
        """The settings as they may be printed: secrets masked."""
        return self.model_dump(mode="json")


def process_environment() -> dict[str, str]:
    """The variables that child processes inherit, without our own settings: those reach them as messages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FOVEAL_")}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per setting, and --config."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings")
    for name, field in Settings.model_fields.items():
        repeatable = name in ("api_key", "url_allow_host", "llm_url", "sglang_register_url", "sglang_allow_host")
        is_switch = field.annotation is bool
        default = "" if field.default in (None, ()) else f" (default: {field.default})"
        parser.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            action="append" if repeatable else "store",
            nargs="?" if is_switch else None,
            const="true" if is_switch else None,
            default=argparse.SUPPRESS,
            metavar="BOOL" if is_switch else "VALUE",
            help=f"{field.description}{default}".replace("%", "%%"),
        )


def read_settings(args: argparse.Namespace) -> Settings:
    """Settings from parsed flags, the environment and the file; raises ConfigurationError with a sentence."""
    flags = {name: value for name, value in vars(args).items() if name in Settings.model_fields}
    config: Path | None = args.config or (Path(found) if (found := os.environ.get("FOVEAL_CONFIG")) else None)
    if config is not None and not config.is_file():
        raise ConfigurationError(f"--config {config}: there is no such file")

    class FromFile(Settings):
        model_config = SettingsConfigDict(yaml_file=config)

    try:
        return FromFile(**flags)
    except ValidationError as error:
        raise ConfigurationError("\n".join(_sentence(e["loc"], e["msg"]) for e in error.errors())) from None
    except (ValueError, OSError, yaml.YAMLError) as error:  # a YAML file that is none
        raise ConfigurationError(f"settings cannot be read: {error}") from None


def _sentence(where: tuple[int | str, ...], message: str) -> str:
    text = message.removeprefix("Value error, ")
    return f"--{str(where[0]).replace('_', '-')}: {text}" if where else text
