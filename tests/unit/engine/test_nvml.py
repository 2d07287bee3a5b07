"""Facts of GPUs: whose they are, what cannot be had, and a driver that hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pynvml
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from foveal.engine.gpu_watch import GpuWatch
from foveal.engine.nvml import THROTTLES, NvmlReader
from foveal.metrics import Metrics

from .fake_nvml import Board, FakeNvml

A, B = Board("GPU-aaaa"), Board("GPU-bbbb", throttling=pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, ecc=3)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def shown(metrics: Metrics) -> dict[str, float]:
    """All samples of the NVML families, as they are written."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if line.startswith("foveal_gpu_"))
    return {name: float(value) for name, value in rows}


def read(fake: FakeNvml, metrics: Metrics, is_pci_order: bool = True, **devices: str) -> dict[str, float]:
    watch = GpuWatch(devices, is_pci_order, metrics, fake)
    watch.show(NvmlReader(fake, devices, is_pci_order, metrics).read())
    return shown(metrics)


def test_every_fact_of_a_gpu_is_told_in_base_units(metrics: Metrics) -> None:
    assert read(FakeNvml(), metrics, w="0") == {
        'foveal_gpu_utilization_ratio{worker="w"}': 0.75,
        'foveal_gpu_device_memory_bytes{kind="used",worker="w"}': 40 << 30,
        'foveal_gpu_device_memory_bytes{kind="total",worker="w"}': 140 << 30,
        'foveal_gpu_clock_hertz{clock="sm",worker="w"}': 1.98e9,
        'foveal_gpu_clock_hertz{clock="memory",worker="w"}': 3.201e9,
        'foveal_gpu_ecc_uncorrected_errors{worker="w"}': 0,
        'foveal_gpu_temperature_celsius{worker="w"}': 61,
        'foveal_gpu_power_watts{worker="w"}': 512.25,
        **{f'foveal_gpu_throttled{{reason="{reason}",worker="w"}}': 0 for reason in THROTTLES},
    }


@pytest.mark.parametrize("device", ["1", "GPU-bbbb", "GPU-b"])
def test_a_gpu_is_found_by_index_by_uuid_and_by_the_head_of_one(device: str, metrics: Metrics) -> None:
    found = read(FakeNvml([A, B]), metrics, first="0", second=device)
    assert found['foveal_gpu_ecc_uncorrected_errors{worker="first"}'] == 0
    assert found['foveal_gpu_ecc_uncorrected_errors{worker="second"}'] == 3
    held = {name for name, value in found.items() if "throttled" in name and value}
    assert held == {'foveal_gpu_throttled{reason="hardware_thermal",worker="second"}'}


def test_a_mig_slice_tells_its_own_memory_and_the_clocks_of_its_board(metrics: Metrics) -> None:
    fake = FakeNvml([A, B], {"MIG-1": Board("MIG-1", parent=B)})
    found = read(fake, metrics, w="MIG-1")
    assert found['foveal_gpu_device_memory_bytes{kind="total",worker="w"}'] == 10
    assert found['foveal_gpu_throttled{reason="hardware_thermal",worker="w"}'] == 1
    assert 'foveal_gpu_utilization_ratio{worker="w"}' not in found  # a slice has none


@pytest.mark.parametrize("device", ["7", "GPU-", "GPU-cccc", "MIG-9"])
def test_a_device_that_is_none_or_two_tells_nothing_and_others_go_on(device: str, metrics: Metrics) -> None:
    found = read(FakeNvml([A, B]), metrics, lost=device, well="0")
    assert found and all('worker="well"' in name for name in found)


def test_an_index_tells_nothing_where_it_may_mean_another_gpu_to_cuda(metrics: Metrics) -> None:
    mixed = FakeNvml([A, Board("GPU-bbbb", name="NVIDIA T4")])
    assert not read(mixed, metrics, is_pci_order=False, w="0")
    assert read(mixed, metrics, is_pci_order=False, w="GPU-bbbb")


def test_what_a_gpu_refuses_is_left_out_and_said_once(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeNvml([Board(ecc=None)])
    reader = NvmlReader(fake, {"w": "0"}, True, metrics)
    with caplog.at_level(logging.INFO):
        watch = GpuWatch({"w": "0"}, True, metrics, fake)
        watch.show(reader.read())
        watch.show(reader.read())
    assert [record.__dict__["fact"] for record in caplog.records] == ["ecc"]
    assert not any("ecc" in name for name in shown(metrics)) and len(shown(metrics)) == 12


def test_a_fact_that_is_no_longer_told_is_no_longer_shown(metrics: Metrics) -> None:
    fake = FakeNvml()
    watch, reader = GpuWatch({"w": "0"}, True, metrics, fake), NvmlReader(fake, {"w": "0"}, True, metrics)
    watch.show(reader.read())
    fake.boards = []
    watch.show(reader.read())
    assert shown(metrics) == {}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


async def test_without_a_driver_the_families_are_there_and_empty_and_it_is_said_once(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await asyncio.wait_for(GpuWatch({"w": "0"}, True, metrics, FakeNvml(has_driver=False)).run(), 10)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert shown(metrics) == {}
    assert b"# TYPE foveal_gpu_throttled gauge" in generate_latest(metrics.registry)


async def test_a_driver_that_hangs_blocks_nobody_and_its_old_facts_go(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeNvml()
    watch = GpuWatch({"w": "0"}, True, metrics, fake, read_seconds=0.001, stale_seconds=0.05)
    running = asyncio.create_task(watch.run())
    try:
        await until(lambda: len(shown(metrics)) > 0)
        fake.hangs.set()
        await until(lambda: shown(metrics) == {})
        assert "NVML does not answer" in caplog.text
        fake.hangs.clear()
        await until(lambda: len(shown(metrics)) > 0)  # and back when it answers again
        fake.hangs.set()
        watch.stop()
        await asyncio.wait_for(running, 10)
    finally:
        fake.hangs.clear()


async def test_facts_are_read_again_and_again_until_the_end(metrics: Metrics) -> None:
    fake = FakeNvml()
    watch = GpuWatch({"w": "0"}, True, metrics, fake, read_seconds=0.001)
    running = asyncio.create_task(watch.run())
    await until(lambda: fake.reads > 3)
    watch.stop()
    await asyncio.wait_for(running, 10)
