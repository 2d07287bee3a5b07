"""--device becomes worker places: counted within what is visible, pinned by variable."""

from __future__ import annotations

import pytest

from foveal.engine.devices import worker_places
from foveal.errors import ConfigurationError
from foveal.settings import Settings

FOUR = {"CUDA_VISIBLE_DEVICES": "4,5,GPU-abc,MIG-def"}


def places(device: str, environment: dict[str, str], **more: int) -> list[str]:
    placement = worker_places(Settings(device=device, **more), environment)
    return [place.environment["CUDA_VISIBLE_DEVICES"] for place in placement.places]


def test_indices_count_within_what_is_visible() -> None:
    assert places("cuda", FOUR) == ["4", "5", "GPU-abc", "MIG-def"]
    assert places("cuda:0,2", FOUR) == ["4", "GPU-abc"]
    assert places("cuda:GPU-xyz", FOUR) == ["GPU-xyz"]


def test_cpu_workers_see_no_gpu() -> None:
    assert places("cpu", FOUR, cpu_workers=3) == ["", "", ""]


def test_auto_takes_the_cpu_where_no_gpu_is_visible() -> None:
    assert worker_places(Settings(device="auto"), {"CUDA_VISIBLE_DEVICES": ""}).device == "cpu"
    assert worker_places(Settings(device="auto"), FOUR).device == "cuda"


@pytest.mark.parametrize("device", ["cuda:9", "tpu", "cuda:"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match="--device"):
        places(device, {"CUDA_VISIBLE_DEVICES": "0"} if device != "cuda:" else {"CUDA_VISIBLE_DEVICES": ""})


def test_an_index_means_the_same_gpu_to_cuda_and_to_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("foveal.engine.devices.visible_gpus", lambda environment: ["0", "1"])
        found = worker_places(Settings(device="cuda"), {"HOME": "/"})
    assert found.gpus == {"cuda-0": "0", "cuda-1": "1"} and found.is_pci_order
    assert {place.environment["CUDA_DEVICE_ORDER"] for place in found.places} == {"PCI_BUS_ID"}
    chosen = worker_places(Settings(device="cuda"), FOUR)  # by somebody who knows CUDA's order: it stays
    assert not chosen.is_pci_order and chosen.gpus["cuda-3"] == "MIG-def"
    assert worker_places(Settings(device="cuda"), {**FOUR, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).is_pci_order
    assert worker_places(Settings(device="cpu"), FOUR).gpus == {}
