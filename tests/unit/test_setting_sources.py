"""Flags, variables, a file: each message names the source that was used, and nothing empty opens the server."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from foveal.errors import ConfigurationError
from foveal.setting_sources import GUARDS, Collected, Sources
from foveal.settings import Settings, add_flags, process_environment, read_settings
from foveal.spelling import did_you_mean

EMPTY = ["", " ", "\t\n", ",", " , ,", "\u00a0"]
LISTS = [name for name, field in Settings.model_fields.items() if field.default == () and name != "token_budgets"]


def read(*flags: str) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return read_settings(parser.parse_args(list(flags)))


def file_of(folder: Path, **content: object) -> str:
    path = folder / "foveal.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def refusal(*flags: str) -> str:
    with pytest.raises(ConfigurationError) as found:
        _ = read(*flags).keys
    return str(found.value)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"FOVEAL_{name.upper()}", raising=False)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


@pytest.mark.parametrize("value", EMPTY)
@pytest.mark.parametrize("name", GUARDS)
def test_what_guards_the_server_is_never_taken_empty(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"FOVEAL_{name.upper()}", value)
    assert refusal().startswith(f"FOVEAL_{name.upper()} is empty")
    monkeypatch.delenv(f"FOVEAL_{name.upper()}")
    assert refusal(flag_of(name), value).startswith(f"{flag_of(name)} is empty")


@pytest.mark.parametrize("value", ["", " ", ",", [], [""], ["good", " "], [None], None], ids=repr)
@pytest.mark.parametrize("name", [*GUARDS, "served_model_name", "host", "otel_endpoint", "llm_url"])
def test_a_file_sets_nothing_to_nothing(name: str, value: object, tmp_path: Path) -> None:
    path = file_of(tmp_path, **{name: value})
    assert refusal("--config", path).startswith(f"{name} in {path} is empty")


@pytest.mark.parametrize("name", LISTS)
def test_a_repeated_flag_hides_no_empty_one(name: str) -> None:
    assert "is empty" in refusal(flag_of(name), "http://a", flag_of(name), "")


def test_an_empty_variable_that_guards_nothing_counts_as_unset_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "PORT", "LLM_URL", "OTEL_ENDPOINT", "TOKEN_BUDGETS"):
        monkeypatch.setenv(f"FOVEAL_{name}", " ")
    settings = read()
    assert settings.shown() == Settings().shown()
    assert sorted(line.split()[0] for line in settings.warnings) == [
        "FOVEAL_HOST", "FOVEAL_LLM_URL", "FOVEAL_OTEL_ENDPOINT", "FOVEAL_PORT", "FOVEAL_TOKEN_BUDGETS",
    ]  # fmt: skip


def test_unset_stays_unset() -> None:
    assert read() == Settings() and read().warnings == () and read().keys == ()


@pytest.mark.parametrize("content", ["", "\n \n", "# our keys\n\n  # more\n", "\ufeff\n"])
def test_a_file_of_comments_holds_no_key(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text(content, encoding="utf-8")
    assert refusal("--api-key-file", str(path)).startswith(f"--api-key-file {path} holds no key")
    monkeypatch.setenv("FOVEAL_API_KEY_FILE", str(path))
    assert refusal().startswith(f"FOVEAL_API_KEY_FILE {path} holds no key")


def test_comments_and_a_byte_order_mark_are_no_part_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("first\n# a comment\nsecond#2\n", encoding="utf-8-sig")
    assert read("--api-key-file", str(path)).keys == ("first", "second#2")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", "abc", "valid integer"),
        ("cache_bytes", "12XB", "512MiB"),
        ("dtype", "int8", "bfloat16"),
        ("allow_urls", "perhaps", "boolean"),
        ("drain_seconds", "-1", "greater than"),
    ],
)
def test_a_value_is_refused_under_the_name_of_its_source(
    name: str, value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = f" {value!r}: "
    by_flag = refusal(f"{flag_of(name)}={value}")
    assert by_flag.startswith(flag_of(name) + shown) and words in by_flag
    path = file_of(tmp_path, **{name: value})
    by_file = refusal("--config", path)
    assert by_file.startswith(f"{name} in {path}{shown}") and words in by_file
    monkeypatch.setenv(f"FOVEAL_{name.upper()}", value)
    by_variable = refusal("--config", path)
    assert by_variable.startswith(f"FOVEAL_{name.upper()}{shown}") and words in by_variable


def test_a_contradiction_names_where_each_side_came_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOVEAL_MAX_QUEUE_TOKENS", "5")
    path = file_of(tmp_path, max_image_tokens=9)
    text = refusal("--config", path)
    assert "max_queue_tokens is set by FOVEAL_MAX_QUEUE_TOKENS" in text
    assert f"max_image_tokens is set by max_image_tokens in {path}" in text


def test_messages_of_later_names_their_source_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEAL_DEVICE", "cuda")
    text = read("--port", "1").explain("--device cuda and --port 1 with --dtype: say --no-such")
    assert text == "FOVEAL_DEVICE cuda and --port 1 with --dtype: say --no-such"


@pytest.mark.parametrize("secret", [{"api_key": [12345]}, {"api_key": 12345}, {"llm_api_key": 12345}], ids=str)
def test_a_refusal_shows_no_secret(secret: dict[str, object], tmp_path: Path) -> None:
    text = refusal("--config", file_of(tmp_path, **secret))
    assert "12345" not in text and "quotes" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- port\n", "no mapping"),
        ("just text", "no mapping"),
        ("api_key: 'secret\n", "line 2, column 1: this is no YAML"),
        ("api_key: @secret\n", "line 1, column 10: this is no YAML"),
        ("port: !!python/object:os.system secret\n", "line 1"),
        ("modle: x\nport: 1\n", "no setting 'modle'; did you mean model?"),
        ("cache-bytes: 1\n", "no setting 'cache-bytes'; did you mean cache_bytes?"),
        ("Port: 1\n", "no setting 'Port'; did you mean port?"),
        ("1: x\nyes: y\n", "no setting 1"),
        ("x: 2024-99-99\n", "no YAML"),
    ],
)
def test_a_file_that_is_none_says_what_and_where_and_quotes_no_value(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "foveal.yaml"
    path.write_text(content)
    text = refusal("--config", str(path))
    assert text.startswith(str(path)) and words in text and "secret" not in text


def test_a_file_may_be_empty_and_must_be_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "foveal.yaml"
    path.write_text("# nothing\n")
    assert read("--config", str(path)) == Settings()
    path.write_bytes(b"\xff\xfe\x00")
    assert "no YAML in UTF-8" in refusal("--config", str(path))
    monkeypatch.setenv("FOVEAL_CONFIG", str(tmp_path / "none"))
    assert refusal().startswith("FOVEAL_CONFIG")


LINKS = {
    "FOVEAL_PORT": "tcp://10.43.1.39:8000",
    "FOVEAL_SERVICE_HOST": "10.43.1.39",
    "FOVEAL_SERVICE_PORT": "8000",
    "FOVEAL_SERVICE_PORT_HTTP": "8000",
    "FOVEAL_PORT_8000_TCP": "tcp://10.43.1.39:8000",
    "FOVEAL_PORT_8000_TCP_PROTO": "tcp",
    "FOVEAL_PORT_8000_TCP_PORT": "8000",
    "FOVEAL_PORT_8000_TCP_ADDR": "10.43.1.39",
    "FOVEAL_GPU_SERVICE_HOST": "10.43.1.40",
    "FOVEAL_GPU_PORT": "tcp://10.43.1.40:8000",
    "FOVEAL_GPU_PORT_8000_TCP_ADDR": "10.43.1.40",
}


@pytest.mark.parametrize("address", ["tcp://10.43.1.39:8000", "udp://10.0.0.1:53", "tcp://[fd00::1]:8000"])
def test_links_to_a_service_called_foveal_are_told_once_and_ignored(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**LINKS, "FOVEAL_PORT": address}.items():
        monkeypatch.setenv(name, value)
    settings = read()
    assert settings.port == 8000
    (told,) = settings.warnings
    assert told.startswith(f"FOVEAL_PORT={address} is the address of a service")
    assert read("--port", "1").port == 1


def test_variables_that_are_no_settings_are_told_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEAL_MODLE", "x")
    monkeypatch.setenv("FOVEAL_ZZZZ", "x")
    for ours in ("FOVEAL_URL", "FOVEAL_PUBLISH", "FOVEAL_MEMORY"):
        monkeypatch.setenv(ours, "x")
    settings = read()
    assert settings.shown() == Settings().shown()
    assert sorted(settings.warnings) == [
        "the variable FOVEAL_MODLE is no setting and is ignored; did you mean FOVEAL_MODEL?",
        "the variable FOVEAL_ZZZZ is no setting and is ignored",
    ]


def test_variables_may_be_in_small_letters_and_reach_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("foveal_port", "7")
    assert read().port == 7 and "foveal_port" not in process_environment()


@given(st.sampled_from(sorted(Settings.model_fields)), st.integers(0, 30), st.sampled_from("abcxyz_"))
def test_a_name_with_one_wrong_letter_is_guessed(name: str, place: int, letter: str) -> None:
    typo = name[: place % len(name)] + letter + name[place % len(name) :]
    assert typo in Settings.model_fields or "did you mean" in did_you_mean(typo, Settings.model_fields)


@given(st.text(max_size=200))
def test_a_text_without_flags_is_explained_as_it_is(text: str) -> None:
    assert Sources({"port": "FOVEAL_PORT"}).explain(text.replace("--", "")) == text.replace("--", "")


def test_the_first_source_wins_whole() -> None:
    collected = Collected(["port", "api_key"])
    collected.add_flags({"port": "1"})
    collected.add_variables({"FOVEAL_PORT": "2", "FOVEAL_API_KEY": "a", "PATH": "x"})
    assert collected.values == {"port": "1", "api_key": "a"}
    assert collected.sources.names == {"port": "--port", "api_key": "FOVEAL_API_KEY"}
