"""Logging: one JSON object a line (or plain text) on standard error, the same in every process."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Any, Literal, TextIO

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _dump(line: Any) -> str:
    return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {_plain(str(key)): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case None | bool() | float():
            return value
        case int() if -(1 << 63) <= value < 1 << 64:
            return value
        case _:
            return str(value).encode("utf-8", "backslashreplace").decode()


class JsonLines(logging.Formatter):
    """Time, level, logger, message, and whatever `extra=` carried."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return _dump(line)
        except TypeError:  # what orjson refuses: text that is no UTF-8, as of file names, and integers above 64 bits
            return _dump(_plain(line))


class PlainLines(logging.Formatter):
    """For a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        more = "".join(f" {key}={value}" for key, value in _extra(record).items())
        text = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.levelname.lower():7} "
        text += f"{record.getMessage()}{more}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _Stream(logging.StreamHandler[TextIO]):
    """Tells of a line that cannot be formatted by one that can, where logging prints a traceback between the lines."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Called within the exception."""
        error = sys.exc_info()
        if isinstance(error[1], OSError):  # nothing can be written any more
            super().handleError(record)
            return
        said = f"a line of {record.name} cannot be written ({record.filename}:{record.lineno}): this is a bug"
        told = {"name": __name__, "levelno": logging.ERROR, "levelname": "ERROR", "msg": said, "exc_info": error}
        self.stream.write(self.format(logging.makeLogRecord(told)) + self.terminator)
        self.flush()


def _log_unraisable(what: sys.UnraisableHookArgs) -> None:
    """For what fails where nobody can catch it: within `__del__`, in a callback of the collector."""
    error = what.exc_value or what.exc_type()
    said = what.err_msg or "exception ignored"
    logging.getLogger("foveal").error(
        "%s in %r", said, what.object, exc_info=(what.exc_type, error, what.exc_traceback)
    )


def set_up(level: str, form: Literal["json", "text"]) -> None:
    """Send every logger of this process to standard error."""
    handler = _Stream(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    sys.unraisablehook = _log_unraisable
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    if form == "json":  # what nobody caught is a line like all others
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    # not shown in any line, and looked up for each
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for chatty in ("httpx", "httpcore", "PIL", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def announce(message: str, **facts: object) -> None:
    """Write one line to standard output in the form of the log; plain text is the message alone.

    For what a program that started this one reads, such as the URL of `--port 0`.
    """
    record = logging.makeLogRecord({"name": "foveal", "levelname": "INFO", "msg": message, **facts})
    print(JsonLines().format(record) if _is_json() else message, flush=True)


def refuse(message: str) -> None:
    """Say on standard error why a command ends: a sentence, or a line of the log where that is JSON.

    Somebody at a terminal gets the sentence alone.
    """
    if _is_json() and not sys.stderr.isatty():
        logging.getLogger("foveal").critical("%s", message)
    else:
        print(f"foveal: {message}", file=sys.stderr)


def _is_json() -> bool:
    """True once `set_up` was told so."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def _log_uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error or kind(), traceback)
    else:
        logging.getLogger("foveal").critical("uncaught: this is a bug", exc_info=(kind, error or kind(), traceback))
