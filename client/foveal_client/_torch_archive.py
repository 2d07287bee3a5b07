"""One tensor as the archive that `torch.save` writes, made without torch and without copying its values.

vLLM loads such an archive with `weights_only=True`. It is a zip file of stored members; the small ones come first, so
that the values lie between two small buffers. Owns the format; knows nothing of embeddings. Never reads an archive:
unpickling is the receiver's, and only of what we wrote here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

ALIGNMENT = 192
"""The values begin at a multiple of 64, as torch does it, and of 3: base64 of the parts is base64 of the whole."""
MAX_VALUES_BYTES = 2**32 - 2**16
"""What a zip file without 64-bit records can hold, less room for the other members."""
_STORAGES = {"bfloat16": ("BFloat16Storage", 2), "float16": ("HalfStorage", 2), "float32": ("FloatStorage", 4)}
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_UTF8_NAMES = 0x800
_DATE = 0x21  # 1 January 1980, the first of a zip file: equal values give equal bytes
_VALUES_MEMBER = "archive/data/0"


@dataclass(frozen=True)
class TorchArchive:
    """The bytes of an archive, in three buffers that follow one another."""

    head: bytes
    """A multiple of `ALIGNMENT` bytes."""
    values: memoryview = field(repr=False)
    """The caller's own memory."""
    tail: bytes

    @property
    def num_bytes(self) -> int:
        """Length of the whole file."""
        return len(self.head) + self.values.nbytes + len(self.tail)

    def buffers(self) -> tuple[bytes, memoryview, bytes]:
        """The file's bytes in order."""
        return self.head, self.values, self.tail


def torch_archive(values: bytes | bytearray | memoryview, dtype: str, shape: Sequence[int]) -> TorchArchive:
    """The archive of one tensor: `values` are its little-endian bytes, row after row, contiguous.

    Costs one CRC over the values (torch does not check it, every other zip reader does), for which the interpreter's
    lock is given up. Raises ValueError when dtype is none of bfloat16, float16 and float32, when shape and length
    disagree, or above MAX_VALUES_BYTES.
    """
    flat = memoryview(values).cast("B")
    if dtype not in _STORAGES:
        raise ValueError(f"dtype must be one of {', '.join(_STORAGES)}, not {dtype!r}")
    storage, item_bytes = _STORAGES[dtype]
    count = _count(shape)
    if flat.nbytes != count * item_bytes:
        raise ValueError(f"{list(shape)} of {dtype} needs {count * item_bytes} bytes, not {flat.nbytes}")
    if flat.nbytes > MAX_VALUES_BYTES:
        raise ValueError(f"a tensor of {flat.nbytes} bytes is over the {MAX_VALUES_BYTES} of a torch archive")
    members = [
        ("archive/data.pkl", _pickle(storage, count, shape)),
        ("archive/byteorder", b"little"),
        ("archive/version", b"3\n"),
    ]
    head, directory = b"", b""
    for name, content in members:
        header, entry = _member(name, zlib.crc32(content), len(content), at=len(head), is_aligned=False)
        head, directory = head + header + content, directory + entry
    header, entry = _member(_VALUES_MEMBER, zlib.crc32(flat), flat.nbytes, at=len(head), is_aligned=True)
    head, directory = head + header, directory + entry
    num_members = len(members) + 1
    starts_at = len(head) + flat.nbytes
    end = _END.pack(b"PK\5\6", 0, 0, num_members, num_members, len(directory), starts_at, 0)
    return TorchArchive(head, flat, directory + end)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        if not 0 <= size < 2**31:
            raise ValueError(f"a side of a tensor is from 0 to 2**31 - 1, not {size}")
        count *= size
    return count


def _member(name: str, crc: int, size: int, *, at: int, is_aligned: bool) -> tuple[bytes, bytes]:
    """A stored member's local header at byte `at`, with padding before its content, and its directory entry."""
    path = name.encode()
    common = (0, _UTF8_NAMES, 0, 0, _DATE, crc, size, size)
    extra = b""
    if is_aligned:
        # Padding hides in an extra field: two letters, its length, then anything.
        padding = -(at + _LOCAL.size + len(path) + 4) % ALIGNMENT
        extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    local = _LOCAL.pack(b"PK\3\4", *common, len(path), len(extra)) + path + extra
    central = _CENTRAL.pack(b"PK\1\2", 0, *common, len(path), 0, 0, 0, 0, 0, at) + path
    return local, central


def _pickle(storage: str, count: int, shape: Sequence[int]) -> bytes:
    """The program that rebuilds the tensor: _rebuild_tensor_v2(storage, 0, shape, stride, False, OrderedDict())."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(1, size)
    persistent_id = b"(" + _text("storage") + _global("torch", storage) + _text("0") + _text("cpu") + _int(count) + b"t"
    arguments = persistent_id + b"Q" + _int(0) + _ints(shape) + _ints(strides) + b"\x89"
    hooks = _global("collections", "OrderedDict") + b")R"
    return b"\x80\2" + _global("torch._utils", "_rebuild_tensor_v2") + b"(" + arguments + hooks + b"tR."


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _int(number: int) -> bytes:
    if number < 2**31:
        return b"J" + struct.pack("<i", number)
    return b"\x8a\x09" + struct.pack("<q", number) + b"\0"


def _ints(numbers: Sequence[int]) -> bytes:
    return b"(" + b"".join(_int(number) for number in numbers) + b"t"
