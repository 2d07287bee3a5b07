"""Types of settings: sizes with suffixes, counts, lists from one variable."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SecretStr
from pydantic_core import PydanticCustomError

_UNITS = {"": 1, "B": 1, **{f"{p}iB": 1 << (10 * i) for i, p in enumerate("KMGT", 1)}}
_UNITS |= {f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)} | {p: 1 << (10 * i) for i, p in enumerate("KMGT", 1)}


def parse_size(value: object) -> object:
    """'512MiB' → 536870912; what is no text passes on to the type's own check."""
    if not isinstance(value, str):
        return value
    if m := re.fullmatch(r"\s*(\d{1,20}(?:\.\d+)?)\s*([A-Za-z]*)\s*", value):
        unit = {name.lower(): factor for name, factor in _UNITS.items()}.get(m[2].lower())
        if unit is not None:
            return int(float(m[1]) * unit)
    raise PydanticCustomError("size", "a size is a number of bytes, or one with a unit such as 512MiB, 2GiB or 10GB")


def split_each(value: object) -> object:
    """'a,b' or a repeated flag's ['a,b', 'c'] → one list."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = ",".join(value)
    return split(value)


def hosts(value: object) -> object:
    """The same for hosts; an unset shell variable must not open what was meant to be closed."""
    found = split_each(value)
    if not found and value != ():  # the default
        raise ValueError("names no host; leave it out to fetch from every public host")
    return found


def split(value: object) -> object:
    """'a,b' from a variable or a flag → ['a', 'b']; one number alone, as a file may have it → a list of it."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


_HOST_AND_PORT = re.compile(r"([^@]*@)?([\w.-]+|\[[\w.:%]+\])(:\d+)?", re.ASCII)


def web_url(text: str) -> str:
    """An http(s) URL with a host, without a final slash: paths are put behind it."""
    shown = repr(without_password(text))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown} is no http://HOST:PORT URL: {error}") from None
    if parts.scheme not in ("http", "https") or not _HOST_AND_PORT.fullmatch(parts.netloc) or port == 0:
        raise ValueError(f"{shown} is no http://HOST:PORT URL")
    if not text.isascii() or not text.isprintable() or set(" ?#") & set(text):
        raise ValueError(f"{shown} is no http://HOST:PORT URL: it has a blank, a query, a fragment or non-ASCII")
    return text.rstrip("/")


def bare_host(text: str) -> str:
    """A host as sockets take it: an IPv6 address without brackets, an address in its shortest form."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ip_address(bare))
    except ValueError:
        if not re.fullmatch(r"[\w.-]+", bare, re.ASCII):
            raise ValueError(
                "a host is an address or a name, without port, scheme or path; the port is --port"
            ) from None
        return bare


def without_password(text: str) -> str:
    """A URL as it may be printed."""
    return re.sub(r"//([^/@:]*):[^/@]*@", r"//\1:**********@", text)


def bearer_key(key: SecretStr) -> SecretStr:
    """A key that can be sent; an unset shell variable must not become an empty one."""
    text = key.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a key is printable ASCII without blanks, and not empty; leave it out to send none of our own")
    return key


_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def web_origin(text: str) -> str:
    """An origin as browsers send it: small letters, no default port, nothing behind the port."""
    if text == "*":
        return text
    found = _ORIGIN.fullmatch(text.lower())
    if found is None or found[1] == "file" or (found[3] and not 0 < int(found[3]) < 1 << 16):
        raise ValueError(
            f"{without_password(text)!r} is no origin; write https://HOST or https://HOST:PORT, without path, pattern "
            "or final slash, in ASCII, or * for all"
        )
    port = "" if found[3] in (None, _DEFAULT_PORTS.get(found[1])) else f":{int(found[3])}"
    return f"{found[1]}://{found[2]}{port}"


Origin = Annotated[str, AfterValidator(web_origin)]
Host = Annotated[str, AfterValidator(bare_host)]
WebUrl = Annotated[str, AfterValidator(web_url), PlainSerializer(without_password)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0, lt=1 << 63)]
BearerKey = Annotated[SecretStr, AfterValidator(bearer_key)]
Count = Annotated[int, Field(ge=1, lt=1 << 63)]
