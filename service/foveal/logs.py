"""Logging: one JSON object a line (or plain text) on standard error, the same in every process."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Any, Literal

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


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
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class PlainLines(logging.Formatter):
    """For a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        more = "".join(f" {key}={value}" for key, value in _extra(record).items())
        text = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.levelname.lower():7} "
        text += f"{record.getMessage()}{more}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def set_up(level: str, form: Literal["json", "text"]) -> None:
    """Send every logger of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
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
    handlers = logging.getLogger().handlers
    record = logging.makeLogRecord({"name": "foveal", "levelname": "INFO", "msg": message, **facts})
    formats = [handler.formatter for handler in handlers if isinstance(handler.formatter, JsonLines)]
    print(formats[0].format(record) if formats else message, flush=True)


def _log_uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error or kind(), traceback)
    else:
        logging.getLogger("foveal").critical("uncaught: this is a bug", exc_info=(kind, error or kind(), traceback))
