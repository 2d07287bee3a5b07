"""Where the values of settings come from: flags over variables over a file. A message names the source it was in.

What is empty is never taken in silence, and what opens or closes the server is never taken empty at all.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from foveal.errors import ConfigurationError
from foveal.spelling import did_you_mean

PREFIX = "FOVEAL_"
GUARDS = {
    "api_key": "an empty key would let everyone in; leave it out to serve without keys",
    "api_key_file": "without a file of keys the server would be open; leave it out to serve without keys",
    "llm_api_key": "a key is not empty; leave it out to send none of our own",
    "url_allow_host": "it names no host; leave it out to fetch from every public host",
    "sglang_allow_host": "it names no host; leave it out to push embeddings to the caller only",
    "ec_shared_storage": "it names no folder; leave it out to publish nothing",
}
"""Settings of which an empty value must not count as unset, and why."""
_MAY_BE_EMPTY = ("token_budgets",)
_FOREIGN = ("FOVEAL_CONFIG", "FOVEAL_URL", "FOVEAL_PUBLISH", "FOVEAL_MEMORY")
"""Variables of ours that are no settings: for the file of settings, for the SDK, for docker-compose.yml."""
_LINK = re.compile(r"(tcp|udp|sctp)://\S+:\d+", re.IGNORECASE)
_LINKS = re.compile(r"FOVEAL_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""What Kubernetes and Docker write for a service that is called foveal, or foveal-something."""
_SHOW_INPUT = re.compile(
    r"(int|float|bool)_(parsing|type|from_float)|.*_than(_equal)?|literal_error|finite_number|size"
)
"""Errors of pydantic's whose input is no secret and helps."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where each given setting came from, and what is to be told about it once there is a log."""

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Of settings that were given: `--port`, `FOVEAL_PORT`, or `port in FILE`."""
    warnings: tuple[str, ...] = ()

    def explain(self, text: str) -> str:
        """The text, in which each flag that was not given as a flag has the name under which it was."""
        return re.sub(r"--([a-z][a-z0-9-]*)", lambda flag: self._name(flag[1], flag[0]), text)

    def _name(self, flag: str, default: str) -> str:
        return self.names.get(flag.replace("-", "_"), default)

    def beside(self, text: str) -> str:
        """For a text about several settings: where each came from."""
        found = [name for name in dict.fromkeys(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)) if name in self.names]
        return f" ({', '.join(f'{name} is set by {self.names[name]}' for name in found)})" if found else ""


class Collected:
    """Values from all sources; the first source that names a setting wins. Raises ConfigurationError."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = tuple(known)
        self.values: dict[str, object] = {}
        self._names: dict[str, str] = {}
        self._warnings: list[str] = []

    def add_flags(self, flags: Mapping[str, object]) -> None:
        """What was given as a flag."""
        for name in self._known:
            if name in flags:
                self._take(name, flags[name], f"--{name.replace('_', '-')}")

    def add_variables(self, environment: Mapping[str, str]) -> None:
        """What was given as a variable, in capitals or not; tells of names that are no settings."""
        found = {name.upper(): (name, value) for name, value in sorted(environment.items(), reverse=True)}
        for upper, (variable, value) in found.items():
            name = upper.removeprefix(PREFIX).lower()
            if not upper.startswith(PREFIX):
                continue
            if name == "port" and _LINK.fullmatch(value.strip()):
                self._warnings.append(
                    f"{variable}={value} is the address of a service that is called foveal, as Kubernetes writes it, "
                    "and no port to listen on: it is ignored. Use --port, or enableServiceLinks: false"
                )
            elif name not in self._known:
                self._tell_unknown(variable, upper, value)
            elif not value.strip() and name not in GUARDS:
                self._warnings.append(f"{variable} is empty and counts as unset; unset it, or give it a value")
            else:
                self._take(name, value, variable)

    def add_file(self, path: Path) -> None:
        """What a file says; raises ConfigurationError for one that is none and for names that are no settings."""
        content = _read(path)
        if unknown := [key for key in content if key not in self._known]:
            words = [f"there is no setting {key!r}{did_you_mean(str(key), self._known)}" for key in unknown]
            raise ConfigurationError("\n".join(f"{path}: {text}" for text in words))
        for name, value in content.items():
            self._take(str(name), value, f"{name} in {path}")

    @property
    def sources(self) -> Sources:
        """Where all of it came from."""
        return Sources(self._names, tuple(self._warnings))

    def _take(self, name: str, value: object, source: str) -> None:
        if _is_empty(value) and name not in _MAY_BE_EMPTY:
            why = GUARDS.get(name, "leave it out for the default, or give it a value")
            raise ConfigurationError(f"{source} is empty, or a part of it is: {why}")
        if name not in self.values:
            self.values[name], self._names[name] = value, source

    def _tell_unknown(self, variable: str, upper: str, value: str) -> None:
        if upper in _FOREIGN or _LINKS.fullmatch(upper) or (upper.endswith("_PORT") and _LINK.fullmatch(value.strip())):
            return
        hint = did_you_mean(upper, [name.upper() for name in self._known], PREFIX)
        self._warnings.append(f"the variable {variable} is no setting and is ignored{hint}")


def declare_flags(parser: argparse.ArgumentParser, fields: Mapping[str, FieldInfo], repeatable: Sequence[str]) -> None:
    """One flag per setting; those that are not given are not in the parsed namespace."""
    for name, field in fields.items():
        is_switch = field.annotation is bool
        default = "" if field.default in (None, ()) else f" (default: {field.default})"
        parser.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            action="append" if name in repeatable else "store",
            nargs="?" if is_switch else None,
            const="true" if is_switch else None,
            default=argparse.SUPPRESS,
            metavar="BOOL" if is_switch else "VALUE",
            help=f"{field.description}{default}".replace("%", "%%"),
        )


def read_keys(path: Path, source: str) -> tuple[str, ...]:
    """The keys of a file, one a line, `#` before a comment; raises ConfigurationError where there is none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigurationError(f"{source} {path} cannot be read: {why}") from None
    found = tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))
    if not found:
        raise ConfigurationError(f"{source} {path} holds no key: the server would be open")
    return found


def sentences(error: ValidationError, sources: Sources) -> str:
    """What is wrong with which setting, and where that was said; one a line, no secret shown."""
    return "\n".join(_sentence(dict(one), sources) for one in error.errors())


def _sentence(error: dict[str, object], sources: Sources) -> str:
    where, kind, value = error["loc"], str(error["type"]), error["input"]
    text = str(error["msg"]).removeprefix("Value error, ")
    if not isinstance(where, tuple) or not where:
        return sources.explain(text) + sources.beside(text)
    source = sources.explain(f"--{str(where[0]).replace('_', '-')}")
    if kind in ("string_type", "tuple_type") and isinstance(value, int | float):
        text += "; YAML reads this value as a number or as yes or no: put it in quotes"
    shown = f" {str(value)[:100]!r}" if _SHOW_INPUT.fullmatch(kind) else ""
    return f"{source}{shown}: {text}"


def _is_empty(value: object) -> bool:
    """True for nothing, blanks, commas alone, and for a list that is empty or holds such."""
    if isinstance(value, list | tuple):
        return not value or any(_is_empty(part) for part in value)
    return value is None or (isinstance(value, str) and not value.strip(" \t\r\n\f\v\u00a0\ufeff,"))


def _read(path: Path) -> dict[object, object]:
    """The mapping in a YAML file; raises ConfigurationError, which quotes nothing of it: it may hold keys."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{path}{place}: this is no YAML ({error.problem or error.context})") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: this is no YAML in UTF-8 ({type(error).__name__})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{path}: this is a {type(content).__name__}, no mapping; write one setting a line, such as port: 8000"
        )
    return content
