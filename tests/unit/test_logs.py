"""Each thing that a process tells is one line of JSON, whatever is in it and however it came to be told."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from foveal.logs import JsonLines
from foveal.settings import process_environment


class Unprintable:
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def told(**extra: Any) -> dict[str, Any]:
    record = logging.makeLogRecord({"name": "foveal", "levelname": "INFO", "msg": "said", **extra})
    text = JsonLines().format(record)
    assert "\n" not in text
    line: dict[str, Any] = json.loads(text)
    return line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("caf\udce9", "caf\\udce9", id="a-file-name-that-is-no-utf-8"),
        pytest.param({"model": "caf\udce9", "port": 8000}, {"model": "caf\\udce9", "port": 8000}, id="within-settings"),
        pytest.param({"caf\udce9": [1.5, None, True]}, {"caf\\udce9": [1.5, None, True]}, id="as-a-name"),
        pytest.param(1 << 70, str(1 << 70), id="a-number-above-64-bits"),
        pytest.param((1, -(1 << 64)), [1, str(-(1 << 64))], id="within-a-tuple"),
        pytest.param("two\nlines", "two\nlines", id="a-line-break"),
        pytest.param(b"\xff", "b'\\xff'", id="bytes"),
    ],
)
def test_whatever_a_line_carries_it_is_json(value: object, shown: object) -> None:
    assert told(value=value)["value"] == shown


def test_a_message_and_a_traceback_that_are_no_utf_8_are_told() -> None:
    try:
        raise ValueError("caf\udce9")
    except ValueError:
        line = told(msg="read caf\udce9", exc_info=sys.exc_info())
    assert line["message"] == "read caf\\udce9"
    assert line["exception"].endswith("ValueError: caf\\udce9")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("log.info('%d workers', 'many')", "TypeError"),
        ("log.info('odd', extra={'value': Unprintable()})", "ValueError: no text"),
    ],
    ids=["arguments", "value"],
)
def test_a_line_that_cannot_be_written_is_told_by_one_that_can(statement: str, reason: str) -> None:
    (line,) = written(f"from tests.unit.test_logs import Unprintable; {statement}")
    assert "cannot be written" in line["message"] and reason in line["exception"]


def test_what_goes_wrong_where_nobody_can_catch_it_is_a_line() -> None:
    (line,) = written("type('Held', (), {'__del__': lambda self: {}['missing']})()")
    assert line["level"] == "error" and line["exception"].endswith("KeyError: 'missing'")


def written(statement: str) -> list[dict[str, Any]]:
    """The lines that a process of its own writes on both streams."""
    program = (
        "import logging; from foveal.logs import set_up; set_up('info', 'json'); log = logging.getLogger('foveal')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program + statement], capture_output=True, text=True, env=process_environment()
    )
    return [json.loads(line) for line in (run.stdout + run.stderr).splitlines()]


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--token-budgets", "0"], "--token-budgets"), (["--model", "/no/such"], "/no/such"), (["--port", "x"], "--port")],
    ids=["range", "model", "type"],
)
@pytest.mark.parametrize("form", ["json", "text", None])
def test_what_a_server_is_refused_for_is_told_in_the_form_of_its_log(
    flags: list[str], words: str, form: str | None
) -> None:
    asked = {} if form is None else {"FOVEAL_LOG_FORMAT": form}
    command = [sys.executable, "-m", "foveal", "serve", "--port", "0", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, env=process_environment() | asked)
    (line,) = (ended.stdout + ended.stderr).splitlines()[-1:]
    assert ended.returncode == 2
    if form == "text":
        assert line.startswith("foveal: ") and words in line
    else:
        told = [json.loads(line) for line in (ended.stdout + ended.stderr).splitlines()]
        assert told[-1]["level"] == "critical" and words in told[-1]["message"]
