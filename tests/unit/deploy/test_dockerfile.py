"""Rules for the Dockerfile, and the files it copies."""

from __future__ import annotations

import fnmatch
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.unit.bench.scripted import answer, scripted

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "Dockerfile").read_text()
LINES = re.sub(r"\\\n(\s*#[^\n]*\n)*", " ", TEXT).splitlines()
STEPS = [line.split(None, 1) for line in LINES if line.strip() and not line.startswith("#")]
HEALTH = ROOT / "deploy" / "docker" / "healthcheck.sh"


def of(keyword: str) -> list[str]:
    return [rest for word, rest in STEPS if word == keyword]


def test_the_base_is_pinned_and_the_same_everywhere() -> None:
    (image,) = [rest for rest in of("ARG") if rest.startswith("PYTHON_IMAGE=")]
    assert re.search(r":\d+\.\d+\.\d+-slim-\w+$", image)
    stages = {rest.split(" AS ")[1] for rest in of("FROM")}
    assert all(rest.split(" AS ")[0] in {"${PYTHON_IMAGE}", *stages} for rest in of("FROM"))
    assert {"cpu", "cuda", "load"} <= stages


def test_what_is_installed_with_a_version_is_pinned() -> None:
    assert any(re.fullmatch(r"TORCH=torch==[\d.]+", rest) for rest in of("ARG"))
    assert "hatchling==" in TEXT


def test_every_installation_from_an_index_is_constrained_and_knows_the_index() -> None:
    steps = [rest for rest in of("RUN") if "pip install" in rest and "--no-build-isolation" not in rest]
    assert len(steps) >= 6
    for step in steps:
        assert "-c /tmp/constraints.txt" in step or "hatchling==" in step, step
        assert "id=pip,target=/etc/pip.conf" in step and "id=ca,target=/run/secrets/ca.pem" in step, step
    assert len(of("ARG")) >= 4 and of("ARG").count("PIP_INDEX_URL") == 1 + len({"code", "cpu", "cuda", "load"})


def test_the_index_of_torch_builds_is_asked_for_torch_alone() -> None:
    # it holds a few versions of what torch needs, rarely those of the constraints
    (step,) = (rest for rest in of("RUN") if "TORCH_INDEX" in rest)
    assert '${TORCH_INDEX:+--no-deps --index-url "$TORCH_INDEX"} "$TORCH"' in step
    packages = TEXT.partition("AS cpu-packages")[2].partition("\nFROM ")[0]
    assert '"$TORCH" -r /tmp/requirements.txt' in packages  # what torch needs, constrained, from the usual index


def test_constraints_pin_everything_that_the_images_install_but_torch() -> None:
    lines = (ROOT / "deploy" / "docker" / "constraints.txt").read_text().splitlines()
    pinned = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines if not line.startswith("#")}
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+]+", line) for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(line for name in ("service", "otel", "demo", "heif", "sglang") for line in extras[name]),
    ]
    named = {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", line)[0]).lower() for line in wanted} - {"torch"}
    assert named <= pinned, named - pinned


def test_the_process_gets_signals_itself_and_is_not_root() -> None:
    for keyword in ("ENTRYPOINT", "CMD"):
        assert of(keyword) and all(rest.startswith("[") for rest in of(keyword))
    stages = re.split(r"^FROM ", "\n".join(LINES), flags=re.MULTILINE)
    for stage in stages:
        if users := re.findall(r"^USER (\S+)", stage, re.MULTILINE):
            assert users[-1] == "10001:10001"
    base = next(stage for stage in stages if " AS base" in stage)
    assert "USER 10001:10001" in base and "HEALTHCHECK" in base and "ENTRYPOINT" in base


def test_no_secret_goes_into_a_layer() -> None:
    assert not re.search(r"(?i)(token|password|secret|api_key)\s*=", TEXT)
    assert "ADD " not in TEXT and "curl" not in TEXT


def test_code_is_copied_after_everything_that_is_large() -> None:
    for target in ("cpu", "cuda"):
        stage = TEXT.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert stage.index("/opt/foveal /opt/foveal") < stage.index("/opt/app /opt/app")


def test_every_copied_file_exists_and_is_let_into_the_build() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for rest in of("COPY"):
        if "--from=" in rest:
            continue
        for source in [word for word in rest.split()[:-1] if not word.startswith("--")]:
            assert (ROOT / source).exists(), source
            names = (source, f"{source}/x")
            assert any(fnmatch.fnmatch(name, pattern) for name in names for pattern in allowed), source


def test_requirements_are_those_of_the_project_without_torch() -> None:
    found = runpy.run_path(str(ROOT / "deploy" / "docker" / "requirements.py"))["requirements"]
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    wanted = {*project["dependencies"], *project["optional-dependencies"]["service"]}
    assert {line for line in wanted if line not in found(text, "service")} == {
        line for line in wanted if line.startswith("torch>")
    }
    assert set(project["optional-dependencies"]["otel"]) <= set(found(text, "service,otel")) - set(wanted)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "127.0.0.1", "localhost"])
def test_the_health_check_asks_where_the_server_listens(host: str) -> None:
    async def service(path: str, body: bytes) -> bytes:
        return answer(b"", 200)

    with scripted(service) as url:
        port = url.rpartition(":")[2]
        variables = {"FOVEAL_PORT": port, "FOVEAL_HOST": host, "PATH": "/usr/bin:/bin"}
        assert subprocess.run([HEALTH], env=variables).returncode == 0


def test_the_health_check_does_not_take_a_link_of_kubernetes_for_a_port() -> None:
    script = HEALTH.read_text().replace("8000", "1").replace('exec 3<>"', 'echo "').replace("printf", "exit 0 #")
    variables = {"FOVEAL_PORT": "tcp://10.43.1.39:8000", "PATH": "/usr/bin:/bin"}
    found = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True)
    assert found.stdout.strip() == "/dev/tcp/127.0.0.1/1"


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
def test_the_health_check_follows_readiness(status: int, exit_code: int) -> None:
    async def service(path: str, body: bytes) -> bytes:
        return answer(b"", status if path == "/ready" else 404)

    with scripted(service) as url:
        port = url.rpartition(":")[2]
        assert subprocess.run([HEALTH], env={"FOVEAL_PORT": port, "PATH": "/usr/bin:/bin"}).returncode == exit_code


def test_the_health_check_says_no_where_nobody_listens() -> None:
    with scripted(lambda path, body: _nothing()) as url:
        port = url.rpartition(":")[2]
    found = subprocess.run([HEALTH], env={"FOVEAL_PORT": port, "PATH": "/usr/bin:/bin"}, capture_output=True)
    assert found.returncode != 0


async def _nothing() -> bytes:
    return b""


def test_compose_builds_targets_that_exist() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    targets = {service["build"]["target"] for service in services.values() if "build" in service}
    assert targets == {"cpu", "cuda", "load"}
