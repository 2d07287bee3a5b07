"""The ways of handing pictures to vLLM, each compared with vLLM's own tower on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np

from foveal_client import Client
from tests.e2e.asking import Said, ask
from tests.e2e.pictures import CONVERSATIONS, as_urls, messages


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    configuration: str
    path: str
    case: str
    wrong: str
    """Empty when all is well."""
    note: str = ""


@dataclass(frozen=True)
class Path:
    """One way: how pictures become parts, which server is asked, and which counter of foveal's must move."""

    name: str
    ask_at: str
    parts: Callable[[list[bytes]], list[dict[str, Any]]]
    stream: bool = False
    counted_at: str = ""
    """URL of the foveal that must have worked for this; empty for none."""


def embedded(foveal: str) -> Callable[[list[bytes]], list[dict[str, Any]]]:
    """(a) The SDK puts the rows into the request."""

    def parts(pictures: list[bytes]) -> list[dict[str, Any]]:
        with Client(foveal) as client:
            return [found.to_vllm_part() for found in client.encode(pictures)]

    return parts


def by_key(foveal: str) -> Callable[[list[bytes]], list[dict[str, Any]]]:
    """(c, d) The server holds or publishes the rows, the request names them."""

    def parts(pictures: list[bytes]) -> list[dict[str, Any]]:
        with Client(foveal) as client:
            return [found.to_vllm_part() for found in client.hold(pictures)]

    return parts


def compare(configuration: str, vllm: str, paths: list[Path]) -> Iterator[Row]:
    """Every conversation along every path, against the pictures given to vLLM as they are."""
    for case, turns in CONVERSATIONS.items():
        direct = ask(vllm, messages(turns, "direct", as_urls))
        again = ask(vllm, messages(turns, "direct again", as_urls))
        yield Row(configuration, "vLLM's own tower, twice", case, direct.difference(again))
        for path in paths:
            yield _row(configuration, path, case, turns, direct)


def _row(configuration: str, path: Path, case: str, turns: list[list[int]], direct: Said) -> Row:
    before = _encoded(path.counted_at)
    try:
        # Another mark for every row: nothing may come out of a cache, here or there.
        said = ask(path.ask_at, messages(turns, f"{path.name}, {case}", path.parts), stream=path.stream)
    except (httpx.HTTPError, ValueError) as error:
        return Row(configuration, path.name, case, f"{type(error).__name__}: {error}")
    if path.counted_at and _encoded(path.counted_at) == before:
        return Row(configuration, path.name, case, "foveal encoded nothing for it: the answer is vLLM's own")
    wrong = said.difference(direct)
    return Row(
        configuration, path.name, case, wrong, "" if wrong else f"log probabilities within {said.distance(direct):.1e}"
    )


def zeroed(configuration: str, vllm: str, foveal: str) -> Row:
    """That a comparison can fail: rows of zeros must give another answer."""
    direct = ask(vllm, messages([[0]], "direct", as_urls))

    def parts(pictures: list[bytes]) -> list[dict[str, Any]]:
        with Client(foveal) as client:
            found = client.encode(pictures)
        return [replace(each, values=np.zeros_like(each.values)).to_vllm_part() for each in found]

    is_same = not ask(vllm, messages([[0]], "zeroed", parts)).difference(direct)
    return Row(configuration, "zeroed rows", "one image", "the same answer as with the picture" if is_same else "")


def _encoded(foveal: str) -> float:
    """Images that a foveal has encoded so far."""
    return metric(foveal, 'foveal_images_total{outcome="encoded"}') if foveal else 0.0


def metric(url: str, name: str) -> float:
    """One sample of a server's /metrics; 0 when it is not there. A name without labels sums over them."""
    lines = httpx.get(f"{url}/metrics", trust_env=False, timeout=30).text.splitlines()
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and not line.startswith("#")]
    return sum(values)
