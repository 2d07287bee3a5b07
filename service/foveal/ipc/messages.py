"""The messages between the api process and its children.

They carry descriptors only: where in which arena bytes lie, never the bytes. Three arenas exist:
`images` (api writes encoded pictures, prep reads), `rows` (prep writes uint8 patch rows, workers read) and
`embeddings` (workers write, api reads). The api process allocates in all of them; a child writes only where
a message told it to. Encoded as MessagePack by msgspec: typed, and no pickle.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from foveal.types import Output, PixelPlan, TokenBudget


class Span(msgspec.Struct, frozen=True):
    """`length` bytes from `offset` of an arena."""

    offset: int
    length: int


# ---------------------------------------------------------------- api → prep


class Probe(msgspec.Struct, tag=True, frozen=True):
    """Read the header of the picture at `image`; answer `Probed` or `Refused`. Decodes nothing."""

    id: int
    image: Span
    max_pixels: int


class Prepare(msgspec.Struct, tag=True, frozen=True):
    """Decode the picture at `image`, make it upright RGB over `background`, resize it as `plan` says and write
    its patch rows (uint8 [plan.num_patches, plan.row_bytes], merge blocks in order) to `rows`.

    Answer `Prepared` or `Refused`.
    """

    id: int
    image: Span
    rows: Span
    plan: PixelPlan
    background: tuple[int, int, int]
    max_pixels: int


# ---------------------------------------------------------------- prep → api


class Probed(msgspec.Struct, tag=True, frozen=True):
    """Upright size in pixels, what the bytes are, and how much work decoding will be (vision/work.py)."""

    id: int
    format: str
    width: int
    height: int
    seconds: float
    work: int = 0


class Prepared(msgspec.Struct, tag=True, frozen=True):
    """The rows are written."""

    id: int
    seconds: float


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The picture is no good: a code of the error table and a sentence for the caller."""

    id: int
    code: str
    message: str


# ---------------------------------------------------------------- api → worker


class Configure(msgspec.Struct, tag=True, frozen=True):
    """First message to a worker: which model, how computed, which ladder."""

    folder: str
    """Checkpoint folder with config.json, and weights unless `load_format` is dummy."""
    load_format: Literal["auto", "dummy"]
    device: Literal["cpu", "cuda"]
    dtype: Literal["auto", "bfloat16", "float16", "float32"]
    token_budgets: tuple[int, ...]
    """Ascending tokens of each step; never empty."""
    max_items: int
    """Images that one pack may have; a step holds min(tokens / item_tokens, max_items)."""
    threads: int
    """CPU threads for torch; 0 leaves torch's own choice."""
    capture: Literal["all", "lazy", "off"] = "all"
    """all: graphs one after the other as soon as packs can be served; lazy: each when first asked for; off: none."""
    max_image_tokens: int = 0
    """Largest image that may come, for the memory that eager runs need."""
    reserve_bytes: int = 0
    """Device memory that graphs leave free beside that."""
    item_tokens: int = 1
    """Tokens of the smallest image that may come."""


class PackItem(msgspec.Struct, frozen=True):
    """One image of a pack. Grid height and width are in patches."""

    rows: Span
    grid_h: int
    grid_w: int
    embedding: Span
    output: Output


class RunPack(msgspec.Struct, tag=True, frozen=True):
    """Encode these items together. `budget` is the step of the ladder to replay, 0 to run eager."""

    id: int
    items: tuple[PackItem, ...]
    budget: int
    reason: str = ""
    """Why eager, for the metrics; empty with a budget."""


class GiveUp(msgspec.Struct, tag=True, frozen=True):
    """Nobody waits any more for this pack: answer `PackGivenUp` between two parts of its forward, if it still runs.

    To a worker on the CPU only. It may cross the pack's own answer, and then says nothing.
    """

    id: int


# ---------------------------------------------------------------- worker → api


class Progress(msgspec.Struct, tag=True, frozen=True):
    """What a starting child does now, in words for `/ready` and the log."""

    stage: str


class WorkerReady(msgspec.Struct, tag=True, frozen=True):
    """The model answers; these are its budgets, measured, and what it runs on."""

    device: str
    dtype: str
    attention: str
    budgets: tuple[TokenBudget, ...]
    weights_bytes: int
    buffers_bytes: int
    load_seconds: float
    torch_version: str
    is_final: bool = True
    """False while graphs are still to be captured."""


class LeastCost(msgspec.Struct, frozen=True):
    """Milliseconds of an image's matrix products and attention alone, on a machine that does nothing else."""

    ms_per_patch: float
    ms_per_patch2: float

    def milliseconds(self, num_patches: int) -> float:
        """Of an image of so many patches."""
        return num_patches * (self.ms_per_patch + self.ms_per_patch2 * num_patches)


class LadderChanged(msgspec.Struct, tag=True, frozen=True):
    """Another graph was captured, or steps were dropped: the whole ladder as it is now."""

    budgets: tuple[TokenBudget, ...]
    ms_per_patch2: float
    """Milliseconds that each squared patch count of an item adds (attention)."""
    typical_patches: int
    """Patches of the items that the budgets were measured with."""
    is_final: bool
    """No more will come."""
    graph_bytes: int
    """Device memory of all graphs with their shared pool."""
    least: LeastCost | None = None
    """What no run is quicker than; None where it was not measured."""


class PackDone(msgspec.Struct, tag=True, frozen=True):
    """The embeddings are written. Seconds of each part; `failures` lists (index of item, code, why)."""

    id: int
    mode: Literal["graph", "static", "eager"]
    """graph: replayed; static: the same buffers with the forward called directly (CPU); eager: no budget."""
    copy_in_seconds: float
    encode_seconds: float
    copy_out_seconds: float
    failures: tuple[tuple[int, str, str], ...] = ()
    device_bytes: int = 0
    reason: str = ""
    """Why no graph was replayed; empty when one was, and on the CPU."""


class PackFailed(msgspec.Struct, tag=True, frozen=True):
    """The whole pack failed; `fatal` says that the worker ends itself after this message."""

    id: int
    message: str
    fatal: bool
    device_bytes: int = 0


class PackGivenUp(msgspec.Struct, tag=True, frozen=True):
    """The pack was left where it was, as asked; nothing of its answers may be read."""

    id: int


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """The child's process runs, and its interpreter lets threads run. Sent by a thread beside its work."""


class ChildReady(msgspec.Struct, tag=True, frozen=True):
    """A prep process has imported what it needs."""


class StartFailed(msgspec.Struct, tag=True, frozen=True):
    """The child cannot work as configured, and another start would not help (missing weights, no device)."""

    message: str


ToPrep = Probe | Prepare
FromPrep = Probed | Prepared | Refused | ChildReady | Heartbeat
ToWorker = Configure | RunPack | GiveUp
FromWorker = Progress | WorkerReady | LadderChanged | PackDone | PackFailed | PackGivenUp | StartFailed | Heartbeat
