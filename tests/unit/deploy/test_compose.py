"""The compose file: pinned, healthy, bounded, not root; and it agrees with the Dockerfile and the settings."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from foveal.bench.serve.flags import add_arguments
from foveal.settings import Settings

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LOAD = ("smoke", "sweep", "overload", "soak", "chaos")
LASTING = sorted(set(SERVICES) - set(LOAD))


def filled(text: str) -> str:
    """With the defaults of its variables."""
    return re.sub(r"\$\{\w+(?::-([^}]*))?\}", lambda match: match[1] or "", text)


def test_every_profile_has_what_the_head_of_the_file_promises() -> None:
    profiles: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for profile in service["profiles"]:
            profiles.setdefault(profile, set()).add(name)
    assert profiles == {
        "serve": {"serve", "prometheus", "grafana"},
        "gpu": {"gpu", "prometheus", "grafana"},
        "load": set(LOAD) - {"chaos"},
        "chaos": {"chaos"},
        "llm": {"llm"},
    }


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    image, _, tag = filled(SERVICES[name]["image"]).rpartition(":")
    assert image and tag not in ("", "latest")
    if not image.startswith("foveal"):
        assert re.search(r"\d+\.\d+\.\d+", tag)


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_is_root_or_gains_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].split(":")[0] not in ("", "0", "root")
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"llm"}))
def test_the_root_is_read_only(name: str) -> None:
    assert SERVICES[name]["read_only"] is True


@pytest.mark.parametrize("name", SERVICES)
def test_memory_is_bounded(name: str) -> None:
    assert re.fullmatch(r"\d+[gm]", filled(SERVICES[name]["mem_limit"]))


@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_has_a_health_check_and_starts_again(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", LASTING)
def test_ports_are_open_on_this_machine_only_unless_told(name: str) -> None:
    assert all(filled(port).startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_only_named_volumes_and_files_of_the_repository_are_mounted() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).exists(), volume


def test_the_encoder_is_given_settings_that_exist_and_fit_its_memory() -> None:
    for name in ("serve", "gpu"):
        given = SERVICES[name]["environment"]
        values = {key.removeprefix("FOVEAL_").lower(): filled(value) for key, value in given.items()}
        assert set(values) <= set(Settings.model_fields)
        settings = Settings(**values)
        gigabytes = int(filled(SERVICES[name]["mem_limit"]).removesuffix("g"))
        # images and rows are bounded by what is in flight; embeddings by that and the cache
        assert 3 * settings.max_inflight_bytes + settings.cache_bytes < gigabytes << 30


def test_a_container_is_stopped_later_than_accepted_work() -> None:
    seconds = int(SERVICES["serve"]["stop_grace_period"].removesuffix("s"))
    assert seconds > Settings.model_fields["drain_seconds"].default


def test_triton_may_load_what_it_compiled() -> None:
    assert SERVICES["gpu"]["tmpfs"][0].endswith(",exec")
    assert "kernels:/cache" in SERVICES["gpu"]["volumes"]


@pytest.mark.parametrize("name", LOAD)
def test_a_load_test_has_flags_that_exist_and_a_verdict(name: str) -> None:
    words = shlex.split(filled(SERVICES[name]["command"]))
    flags = words[words.index("serve") + 1 :]
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    args = parser.parse_args(flags)
    assert args.url == "http://foveal:8000"
    assert args.max_error_share is not None
    assert args.json.parent == Path("/results")


def test_both_encoders_answer_to_the_name_that_prometheus_and_load_tests_use() -> None:
    for name in ("serve", "gpu"):
        assert SERVICES[name]["networks"]["default"]["aliases"] == ["foveal"]


def test_shared_memory_needs_no_size_and_the_file_says_why() -> None:
    assert not any("shm_size" in SERVICES[name] for name in SERVICES if name != "llm")
    assert "0002-anonymous-arenas" in (ROOT / "docker-compose.yml").read_text()


def test_what_was_never_run_says_so() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert re.search(r"# UNTESTED[^\n]*\n(\s+#[^\n]*\n)*  llm:", text)
