"""The settings of URL fetching: off by default, a bare flag turns it on, lists repeat or hold commas."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from foveal.api.context import Server
from foveal.errors import ConfigurationError
from foveal.metrics import Metrics
from foveal.settings import Settings, add_flags, read_settings


def read(*flags: str) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return read_settings(parser.parse_args(list(flags)))


def test_urls_are_off_until_asked_for() -> None:
    assert read().allow_urls is False
    assert Server(read(), Metrics(CollectorRegistry())).fetcher is None


@pytest.mark.parametrize("flags", [["--allow-urls"], ["--allow-urls", "true"], ["--allow-urls=1"]])
def test_the_flag_turns_them_on(flags: list[str]) -> None:
    assert read(*flags, "--port", "0").allow_urls is True
    assert Server(read(*flags), Metrics(CollectorRegistry())).fetcher is not None


def test_the_flag_may_say_no_to_variable_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "foveal.yaml"
    config.write_text("allow_urls: true\nurl_allow_host: [a.example, '*.b.example']\n")
    assert read("--config", str(config)).allow_urls is True
    assert read("--config", str(config)).url_allow_host == ("a.example", "*.b.example")
    monkeypatch.setenv("FOVEAL_ALLOW_URLS", "true")
    assert read().allow_urls is True
    assert read("--allow-urls", "false", "--config", str(config)).allow_urls is False


def test_hosts_repeat_or_hold_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("--url-allow-host", "a,b", "--url-allow-host", "c:9000").url_allow_host == ("a", "b", "c:9000")
    monkeypatch.setenv("FOVEAL_URL_ALLOW_HOST", "a, *.b")
    assert read().url_allow_host == ("a", "*.b")


@pytest.mark.parametrize(
    "flags",
    [
        ["--allow-urls", "perhaps"],
        ["--url-timeout-seconds", "0"],
        ["--url-max-redirects", "-1"],
        ["--url-max-per-host", "0"],
    ],
)
def test_values_that_cannot_be_are_refused_by_name(flags: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=flags[0]):
        read(*flags)


def test_a_host_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match="--url-allow-host"):
        Server(read("--url-allow-host", "http://a.example/"), Metrics(CollectorRegistry()))


@pytest.mark.parametrize("flags", [["--url-allow-host", ""], ["--url-allow-host", " , "]])
def test_a_list_that_names_no_host_is_refused_instead_of_allowing_all(flags: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="names no host"):
        read("--allow-urls", *flags)
