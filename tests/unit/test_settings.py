"""Settings: flag over variable over file, sizes with suffixes, refusals that say what to change."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from foveal.errors import ConfigurationError
from foveal.setting_types import parse_size
from foveal.settings import Settings, add_flags, process_environment, read_settings


def read(*flags: str) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return read_settings(parser.parse_args(list(flags)))


def test_flag_wins_over_variable_and_variable_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "foveal.yaml"
    config.write_text("port: 1\ncache_bytes: 1KiB\nmax_wait_ms: 2.5\n")
    monkeypatch.setenv("FOVEAL_CACHE_BYTES", "2KiB")
    monkeypatch.setenv("FOVEAL_MAX_WAIT_MS", "3")
    settings = read("--config", str(config), "--max-wait-ms", "4")
    assert (settings.port, settings.cache_bytes, settings.max_wait_ms) == (1, 2048, 4.0)


@pytest.mark.parametrize(
    ("text", "number"),
    [("512", 512), ("1KiB", 1024), ("1 kb", 1000), ("1.5MiB", 3 << 19), ("2G", 2 << 30), ("7TB", 7 * 10**12)],
)
def test_sizes_take_suffixes(text: str, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--token-budgets", "0"], ["--token-budgets", "greater than or equal to 1"]),
        (["--token-budgets", "64,64"], ["ascend"]),
        (["--max-body-bytes", "12zz"], ["--max-body-bytes"]),
        (["--max-queue-tokens", "10"], ["max_queue_tokens", "max_image_tokens"]),
        (["--max-inflight-bytes", "1MiB"], ["max_inflight_bytes", "max_body_bytes"]),
        (["--config", "/no/such/file.yaml"], ["/no/such/file.yaml"]),
        (["--dtype", "int8"], ["--dtype"]),
        (["--cache-bytes", "9" * 400], ["--cache-bytes"]),
        (["--llm-api-key", ""], ["--llm-api-key", "not empty"]),
        (["--llm-api-key", "two words"], ["--llm-api-key", "blanks"]),
        (["--ec-shared-storage", ""], ["--ec-shared-storage", "names no folder"]),
        (
            ["--ec-shared-storage", "/x", "--handover-seconds", "700"],
            ["ec_shared_storage_seconds 600", "handover_seconds 700"],
        ),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else str(v),
)
def test_what_cannot_be_is_refused_with_its_name(flags: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read(*flags)
    assert all(word in str(refusal.value) for word in words)


FLOATS = [name for name, field in Settings.model_fields.items() if field.annotation is float]


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999"])
def test_no_number_is_infinite_or_none(value: str) -> None:
    assert "handover_seconds" in FLOATS and len(FLOATS) > 5
    for name in FLOATS:
        with pytest.raises(ConfigurationError, match="finite"):
            read(f"--{name.replace('_', '-')}={value}")


@pytest.mark.parametrize("flag", ["--llm-url", "--sglang-register-url", "--sglang-public-url", "--otel-endpoint"])
@pytest.mark.parametrize(
    "url",
    [
        "h:80", "http://", "http://:80", "http://h:", "http://h:0", "http://h:99999", "http://h:-1", "http://h:8a",
        "http://h: 80", "http://a b:80", "http://h\u00e4:80", "http://h:\u0661", "http://h\n:80", "http://[::1",
        "http://::1:80", "http://[zz]:80", "http://[::1]x:80", "http://h/?a", "http://h?", "http://h#", "ftp://h",
    ],
)  # fmt: skip
def test_what_is_no_base_url_is_refused_with_a_sentence(flag: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match=flag):
        read(flag, url)


@pytest.mark.parametrize("url", ["http://h", "https://h_1.x-y:65535/v1", "http://[::1]:80/", "http://[fe80::1%25e0]:1"])
def test_base_urls_lose_their_final_slash_alone(url: str) -> None:
    assert read("--llm-url", url).llm_url == (url.rstrip("/"),)


def test_an_unknown_key_of_the_file_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "foveal.yaml"
    config.write_text("cache_byts: 1\n")
    with pytest.raises(
        ConfigurationError, match=r"foveal\.yaml: there is no setting 'cache_byts'; did you mean cache_bytes\?"
    ):
        read("--config", str(config))


def test_keys_come_from_flags_and_file_and_are_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("second\n\nthird\n")
    settings = read("--api-key", "first", "--api-key-file", str(path))
    assert settings.keys == ("first", "second", "third")
    assert "first" not in str(settings.shown()) and "first" not in repr(settings)


def test_children_do_not_inherit_our_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEAL_API_KEY", "secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    environment = process_environment()
    assert "FOVEAL_API_KEY" not in environment and environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("name", "content"),
    [("empty", b"\n\n"), ("binary", b"\xff\xfe\x00")],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_key_file_without_a_key_does_not_open_the_server(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="--api-key-file"):
        _ = read("--api-key-file", str(path)).keys
    with pytest.raises(ConfigurationError, match="--api-key"):
        _ = Settings(api_key=["", "good"]).keys  # type: ignore[arg-type]


def test_a_broken_yaml_file_is_a_sentence(tmp_path: Path) -> None:
    config = tmp_path / "foveal.yaml"
    config.write_text("port: [1\n")
    with pytest.raises(ConfigurationError):
        read("--config", str(config))
