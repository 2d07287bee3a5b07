"""Figures replace finished ones only when they are complete."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from foveal.bench.curves import command
from foveal.bench.figures import plot_path, save_plot, write_figures


@pytest.mark.parametrize("name", ["x", "x.txt", "x.png.gz", "-"])
def test_an_ending_that_nothing_can_be_drawn_for_is_refused_at_once(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must end in one of \.png"):
        plot_path(name)
    assert plot_path("folder/X.PNG") == Path("folder/X.PNG")


def test_a_plot_that_cannot_be_drawn_leaves_the_one_before(tmp_path: Path) -> None:
    class Figure:
        def savefig(self, file: object, **_: object) -> None:
            raise MemoryError

    (tmp_path / "x.png").write_bytes(b"before")
    with pytest.raises(MemoryError):
        save_plot(tmp_path / "x.png", Figure())
    assert (tmp_path / "x.png").read_bytes() == b"before"


def test_figures_that_are_no_json_leave_those_before(tmp_path: Path) -> None:
    write_figures(tmp_path / "x.json", [1])
    with pytest.raises(TypeError):
        write_figures(tmp_path / "x.json", [1, object()])
    assert json.loads((tmp_path / "x.json").read_text()) == [1]


def test_curves_that_are_stopped_between_cases_do_not_replace_finished_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, partial = tmp_path / "curves.json", tmp_path / "curves.json.partial"
    path.write_text("all cases")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    names = list(command.CASES)[:2]
    args = parser.parse_args(["--cases", *names, "--json", str(path), "--logs", str(tmp_path)])
    monkeypatch.setattr(command, "tables", lambda told: "")

    def stopped(case: command.Case, *_: object) -> dict[str, str]:
        if case.name == names[1]:
            raise KeyboardInterrupt
        return {"name": case.name}

    monkeypatch.setattr(command, "_case", stopped)
    with pytest.raises(KeyboardInterrupt):
        command.run(args)
    assert path.read_text() == "all cases"
    assert [case["name"] for case in json.loads(partial.read_text())["cases"]] == names[:1]
    monkeypatch.setattr(command, "_case", lambda case, *_: {"name": case.name})
    assert command.run(args) == 0
    assert [case["name"] for case in json.loads(path.read_text())["cases"]] == names and not partial.exists()
