"""`multipart/form-data` from a body that is already in memory: files in order, other fields as options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from foveal.errors import InvalidRequest, TooLarge

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FIELDS = 64
MAX_FIELD_BYTES = 64 << 10
MAX_HEADER_BYTES = 16 << 10


@dataclass
class _Part:
    header_bytes: int = 0
    disposition: bytes = b""
    data: list[bytes] = field(default_factory=list)
    size: int = 0

    @property
    def options(self) -> dict[bytes, bytes]:
        return parse_options_header(self.disposition)[1] if self.disposition else {}


@dataclass
class Form:
    """What a multipart body held."""

    files: list[bytes] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


def read_form(body: bytes, content_type: str, max_files: int) -> Form:
    """Files and fields of the body; raises InvalidRequest or TooLarge."""
    boundary = parse_options_header(content_type.encode("latin-1", "replace"))[1].get(b"boundary")
    if not boundary:
        raise InvalidRequest("multipart/form-data needs a boundary in its Content-Type")
    collector = _Collector(max_files)
    try:
        parser = MultipartParser(boundary, collector.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise InvalidRequest("the multipart body is malformed; check boundary and part headers") from None
    if not collector.is_complete:
        raise InvalidRequest("the multipart body has no closing boundary: it is cut off")
    return collector.form


class _Collector:
    """Callbacks of the parser; slices of the body are joined once per part."""

    def __init__(self, max_files: int) -> None:
        self.form = Form()
        self.is_complete = False
        self._max_files = max_files
        self._num_parts = 0
        self._part = _Part()
        self._name = b""
        self._value = b""

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_FIELDS + self._max_files:
            raise InvalidRequest(f"the multipart body has more than {MAX_FIELDS + self._max_files} parts")
        self._part, self._name, self._value = _Part(), b"", b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._part.disposition = self._value
        self._name = self._value = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._part.data.append(data[start:end])
        self._part.size += end - start
        if b"filename" not in self._part.options and self._part.size > MAX_FIELD_BYTES:
            raise TooLarge(f"a form field may have {MAX_FIELD_BYTES} bytes; send pictures as file parts")

    def _end(self) -> None:
        options = self._part.options
        data = self._part.data[0] if len(self._part.data) == 1 else b"".join(self._part.data)
        if b"filename" in options:
            self.form.files.append(data)
            if len(self.form.files) > self._max_files:
                raise too_many_images(self._max_files)
        elif b"name" in options:
            self._field(options[b"name"], data)
        else:
            raise InvalidRequest("a part of the multipart body has no name in its Content-Disposition")

    def _field(self, name: bytes, value: bytes) -> None:
        self.form.fields[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")

    def _finish(self) -> None:
        self.is_complete = True

    def _count_header(self, size: int) -> None:
        self._part.header_bytes += size
        if self._part.header_bytes > MAX_HEADER_BYTES:
            raise InvalidRequest(f"the headers of a part are longer than {MAX_HEADER_BYTES} bytes")


def too_many_images(limit: int) -> TooLarge:
    """The refusal of a request with more images than allowed."""
    return TooLarge(f"a request may have {limit} images (--max-images-per-request); send several requests")
