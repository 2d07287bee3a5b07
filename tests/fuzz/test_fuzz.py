"""A short slice of `make fuzz`: seconds here, as long as you like there."""

from __future__ import annotations

import pytest

from foveal.errors import FovealError
from foveal.vision.decode import decode
from tests.fuzz import inside
from tests.fuzz.inside import CALLERS_FAULTS, Finding, Inside, resident_bytes
from tests.fuzz.mutate import reseal, spoiled
from tests.fuzz.seeds import seeds
from tests.fuzz.through import MAX_GROWTH_BYTES, Through

INSIDE, THROUGH = 1500, 400


def test_spoiled_files_are_answered_as_callers_faults_and_touch_nothing(capfd) -> None:
    fuzz = Inside(seed=0)
    answers = fuzz.run(0, INSIDE // 2)
    before = resident_bytes()
    answers += fuzz.run(INSIDE // 2, INSIDE // 2)
    assert resident_bytes() - before < MAX_GROWTH_BYTES
    assert answers.keys() <= CALLERS_FAULTS | {"prepared"} and answers.total() == INSIDE
    assert answers["prepared"] > INSIDE // 10 and answers["undecodable"] > INSIDE // 10
    capfd.readouterr()  # what the TIFF library says


async def test_spoiled_files_through_real_processes_end_none() -> None:
    answers = await Through(seed=1).run(range(THROUGH))
    assert answers.keys() <= CALLERS_FAULTS | {"prepared"} and answers.total() == THROUGH


def test_an_input_is_its_seed_and_its_number() -> None:
    files = list(seeds().values())
    assert [spoiled(files, 3, n) for n in range(50)] == [spoiled(files, 3, n) for n in range(50)]
    assert len({spoiled(files, 3, n) for n in range(200)} | {spoiled(files, 4, n) for n in range(200)}) > 390


def test_a_png_is_sealed_again_and_other_files_are_left_alone() -> None:
    png = seeds()["png"]
    broken = png[:29] + b"\0\0\0\0" + png[33:]
    assert reseal(broken) == reseal(png) == png
    assert reseal(seeds()["jpeg"]) == seeds()["jpeg"] and reseal(png[:50]) is not None


def test_an_answer_that_blames_the_server_is_a_finding(monkeypatch) -> None:
    fuzz = Inside(seed=0)
    monkeypatch.setattr("foveal.vision.__main__.decode", lambda *_: 1 / 0)
    with pytest.raises(Finding, match="internal"):
        fuzz.run(0, 20)


def test_a_file_that_is_opened_is_a_finding(monkeypatch, tmp_path) -> None:
    def peek(*_: object) -> None:
        (tmp_path / "peek").open("w").close()
        raise FovealError("too late")

    fuzz = Inside(seed=0)
    monkeypatch.setattr("foveal.vision.__main__.decode", peek)
    with pytest.raises(Finding), inside.watching():
        fuzz.answer(seeds()["png"], 0)
    assert any(line.startswith("open") for line in inside.touched)
    inside.touched.clear()


def test_every_kind_starts_from_a_good_file() -> None:
    for data in seeds().values():
        assert decode(data, (255, 255, 255), 10**6).size > 0
