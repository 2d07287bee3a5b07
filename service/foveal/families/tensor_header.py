"""The head of a safetensors file: which tensors it has and where, without the bytes of any."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from foveal.errors import ConfigurationError
from foveal.families.fingerprint import MAX_HEADER_BYTES
from foveal.families.weight_files import refuse_pointer

LENGTH_BYTES = 8


@dataclass(frozen=True)
class TensorPlace:
    """One tensor of a file."""

    dtype: str
    """As safetensors writes it: F32, BF16, ..."""
    shape: tuple[int, ...]
    start: int
    """Bytes behind the head."""
    stop: int


def header_length(where: str, first: bytes) -> int:
    """Bytes of the head behind its own length; raises ConfigurationError for what cannot be one."""
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if len(first) < LENGTH_BYTES or not 2 <= length <= MAX_HEADER_BYTES:
        raise ConfigurationError(
            f"{where} cannot be read: it does not begin as a safetensors file does, so it is damaged or something "
            "else; fetch it again"
        )
    return length


def parse_header(where: str, header: bytes) -> dict[str, TensorPlace]:
    """The tensors that a head names; raises ConfigurationError where it is damaged."""
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        return {
            name: TensorPlace(str(e["dtype"]), tuple(e["shape"]), int(e["data_offsets"][0]), int(e["data_offsets"][1]))
            for name, e in entries.items()
        }
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{where} cannot be read: its head is damaged ({type(error).__name__}); fetch it again"
        ) from None


def read_header(path: Path) -> dict[str, TensorPlace]:
    """The tensors of a local file; raises ConfigurationError where it is missing, damaged or cut short."""
    refuse_pointer(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = header_length(str(path), file.read(LENGTH_BYTES))
            places = parse_header(str(path), file.read(length))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None
    end = LENGTH_BYTES + length + max((place.stop for place in places.values()), default=0)
    if size < end:
        raise ConfigurationError(
            f"{path} cannot be read: it is cut short, {size} bytes of {end}; fetch it again (a download or a copy "
            "ended early)"
        )
    return places
