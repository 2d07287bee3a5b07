"""The kernel's notation of cores, and what becomes of a worker's."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from foveal.gpu import nearness
from foveal.gpu.nearness import near_cores, parse_cores, stay_near

GPU = torch.device("cuda", 0)
PROPERTIES = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0\n", {0}), ("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}), ("5-5", {5}), ("0-1,64-65", {0, 1, 64, 65})],
)
def test_cores_are_read_from_the_kernels_notation(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["", "\n", "a", "1-b", "0,,1"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cores(text)


def test_the_cores_are_those_of_the_devices_folder(tmp_path: Path) -> None:
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0" / "local_cpulist").write_text("0-1\n")
    assert near_cores("0000:1b:00.0", tmp_path) == {0, 1}


@pytest.mark.parametrize(
    ("near", "chosen"), [("0-3", {2, 3}), ("8-15", None), ("", None)], ids=["some", "none", "not-said"]
)
def test_a_worker_keeps_to_its_allowed_cores_that_are_near(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, near: str, chosen: set[int] | None
) -> None:
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0" / "local_cpulist").write_text(near)
    bound: list[set[int]] = []
    monkeypatch.setattr(nearness.near_cores, "__defaults__", (tmp_path,))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: PROPERTIES)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 4, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: bound.append(cores))
    stay_near(GPU)
    assert bound == ([] if chosen is None else [chosen])


def test_a_torch_that_does_not_tell_leaves_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    before = os.sched_getaffinity(0)
    stay_near(GPU)
    assert os.sched_getaffinity(0) == before
