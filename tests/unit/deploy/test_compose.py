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
            source = filled(volume).split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).exists(), volume


def test_the_encoder_is_given_settings_that_exist_and_fit_its_memory() -> None:
    for name in ("serve", "gpu"):
        given = {key: value for key, value in SERVICES[name]["environment"].items() if value is not None}
        values = {key.removeprefix("FOVEAL_").lower(): filled(value) for key, value in given.items()}
        assert set(values) <= set(Settings.model_fields)
        settings = Settings(**values)
        gigabytes = int(filled(SERVICES[name]["mem_limit"]).removesuffix("g"))
        # images and rows are bounded by what is in flight; embeddings by that, the cache and what is held
        arenas = 3 * settings.max_inflight_bytes + settings.cache_bytes + settings.handover_bytes
        assert arenas < gigabytes << 30
        # no body of a caller, but the service's own worst case: in flight, cache, held, decoders, model and processes
        decoders = settings.prep_workers * settings.prep_memory_bytes
        held = settings.max_inflight_bytes + settings.cache_bytes + settings.handover_bytes
        assert held + decoders + (600 << 20) < gigabytes << 30


@pytest.mark.parametrize("name", ["serve", "gpu"])
def test_every_setting_reaches_the_encoder_from_the_shell_and_from_the_file(name: str) -> None:
    service = SERVICES[name]
    assert service["env_file"] == [{"path": ".env", "required": False}]
    given = service["environment"]
    missing = {field for field in Settings.model_fields if f"FOVEAL_{field.upper()}" not in given}
    assert not missing, f"add them to x-passed: {sorted(missing)}"
    # a value of the file would win over a variable without one, and lose against one with a value: no port is moved
    fixed = {key for key, value in given.items() if value is not None and "$" not in value}
    assert fixed == {"FOVEAL_HOST", "FOVEAL_PORT", "FOVEAL_DEVICE"}
    assert given["FOVEAL_PORT"] == "8000" and given["FOVEAL_HOST"] == "0.0.0.0"


OUTSIDE = {"HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "SSL_CERT_FILE"} | {
    name for kind in ("HTTP", "HTTPS", "ALL", "NO") for name in (f"{kind}_PROXY", f"{kind.lower()}_proxy")
}


@pytest.mark.parametrize("name", ["serve", "gpu", "llm"])
def test_what_the_hub_and_proxies_need_reaches_whatever_fetches_a_model(name: str) -> None:
    given = SERVICES[name]["environment"]
    assert all(given[variable] is None for variable in OUTSIDE)


@pytest.mark.parametrize("name", ["serve", "gpu"])
def test_what_traces_need_reaches_the_encoder(name: str) -> None:
    wanted = {"TRACES_SAMPLER", "EXPORTER_OTLP_HEADERS", "EXPORTER_OTLP_CERTIFICATE", "SERVICE_NAME", "SDK_DISABLED"}
    assert {f"OTEL_{variable}" for variable in wanted} <= set(SERVICES[name]["environment"])


@pytest.mark.parametrize("name", LOAD)
def test_a_load_test_has_the_servers_key_and_no_empty_one(name: str) -> None:
    assert SERVICES[name]["environment"]["FOVEAL_API_KEY"] is None


def test_no_variable_is_set_to_nothing_where_nobody_set_it() -> None:
    # an empty key, proxy or model is refused, or means something else than one that is absent
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            assert value is None or filled(str(value)), (name, variable)


def test_builds_take_an_index_a_certificate_and_extras() -> None:
    for name in ("serve", "gpu", "smoke"):
        build = SERVICES[name]["build"]
        assert {"TORCH_INDEX", "EXTRAS", "PIP_INDEX_URL"} == set(build["args"])
        assert build["secrets"] == ["pip", "ca"] and set(COMPOSE["secrets"]) == {"pip", "ca"}
    for secret in COMPOSE["secrets"].values():
        assert (ROOT / filled(secret["file"])).is_file()


def test_a_machine_of_one_core_can_run_every_service() -> None:
    assert all(float(filled(str(service.get("cpus", 1)))) <= 1 for service in SERVICES.values())


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
