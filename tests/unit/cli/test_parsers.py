"""A typing error on the command line ends with the usage of the right command and what was probably meant."""

from __future__ import annotations

import pytest

from foveal.cli import main
from foveal.cli.parsers import Parser


@pytest.mark.parametrize(
    ("line", "command", "words"),
    [
        ("serve --modle x", "foveal serve", "there is no --modle; did you mean --model?"),
        ("serve --api_key x", "foveal serve", "there is no --api_key; did you mean --api-key?"),
        ("serve --PORT=1", "foveal serve", "there is no --PORT; did you mean --port?"),
        ("serve --port 1 extra", "foveal serve", "unexpected: extra"),
        ("serve --host", "foveal serve", "--host"),
        ("encode --recusive a", "foveal encode", "there is no --recusive; did you mean --recursive?"),
        ("info --ulr x", "foveal info", "there is no --ulr; did you mean --url?"),
        ("models --wat", "foveal models", "there is no --wat"),
        ("serv", "foveal", "there is no 'serv'; did you mean serve?"),
        ("--verson", "foveal", "there is no --verson; did you mean --version?"),
        ("bench pakcing", "foveal bench", "there is no 'pakcing'; did you mean packing?"),
        ("bench packing --sed 1", "foveal bench packing", "there is no --sed; did you mean --seed?"),
    ],
)
def test_a_typing_error_is_told_by_the_right_command(
    line: str, command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(line.split())
    told = capsys.readouterr().err
    assert end.value.code == 2 and told.startswith(f"usage: {command} ") and words in told
    assert f"{command}: error: " in told


def test_an_abbreviation_that_argparse_takes_is_no_typing_error() -> None:
    parser = Parser()
    parser.add_argument("--concurrency", type=int)
    assert parser.parse_args(["--conc", "3"]).concurrency == 3
