"""From what the hub's client raises to a sentence: is it the name, the revision, rights, the network or the disk?"""

from __future__ import annotations

import errno
from collections.abc import Iterator

_TRANSPORTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3", "ssl")
"""Packages whose errors are of the network; which of them the client has depends on its version."""
_MAX_TEXT = 300


def sentence(model: str, revision: str | None, error: Exception) -> str | None:
    """What went wrong and what to do; None for an error that has nothing to do with a hub."""
    from huggingface_hub import errors

    chain = list(_chain(error))
    said = _refused(model, revision, chain)
    if said is not None:
        return said
    if isinstance(error, errors.HFValidationError):
        return f"this is neither a folder here nor a name that a hub takes: {_text(error)}"
    if _is_offline():
        return (
            f"HF_HUB_OFFLINE is set and {_cache()} does not hold all that is needed{_at(revision)}: fetch it once "
            "without the variable, or serve a local folder"
        )
    if is_unreachable(error):
        return _unreachable(chain)
    if isinstance(error, OSError):
        return _disk(error)
    return None


def is_unreachable(error: BaseException) -> bool:
    """True where no answer of a hub came, or one that says that it cannot serve now."""
    from huggingface_hub import errors

    chain = list(_chain(error))
    answers = [e for e in chain if isinstance(e, errors.HfHubHTTPError)]
    if answers:
        return all(_status(e) >= 500 or _status(e) == 429 for e in answers)
    return any(
        _is_transport(e) or isinstance(e, errors.OfflineModeIsEnabled | ConnectionError | TimeoutError) for e in chain
    )


def _refused(model: str, revision: str | None, chain: list[BaseException]) -> str | None:
    """The hub answered, and said no."""
    from huggingface_hub import errors

    for error in chain:
        if isinstance(error, errors.GatedRepoError):
            return (
                f"the hub keeps this model for those who accepted its terms: accept them at {_endpoint()}/{model} and "
                "give a token of that account as HF_TOKEN"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return f"the hub has this model, but no revision {revision or 'main'!r}: give a branch, tag or commit of it"
        if isinstance(error, errors.RepositoryNotFoundError):
            return (
                f"the hub at {_endpoint()} has no such model, and there is no such folder here: look for a slip in the "
                "name; a private one needs HF_TOKEN of an account that may read it"
            )
        if isinstance(error, errors.HfHubHTTPError) and (status := _status(error)) < 500:
            return f"the hub at {_endpoint()} answered {status}: {_ADVICE.get(status, _text(error))}"
    return None


_ADVICE = {
    401: "there is no such model, or it is private: look for a slip in the name; HF_TOKEN may be missing or too old",
    403: "the token in HF_TOKEN may not read this model: accept its terms, or give a token with that right",
    404: "there is no such model or file: look for a slip in the name and in HF_ENDPOINT",
    429: "too many requests: wait, or give a token as HF_TOKEN, which has a limit of its own",
}


def _unreachable(chain: list[BaseException]) -> str:
    statuses = [status for error in chain if (status := _status(error))]
    if statuses:
        return f"the hub at {_endpoint()} answered {statuses[0]}: it cannot serve now; try again later"
    kinds = " ".join(type(error).__name__ + " " + str(error) for error in chain).lower()
    if "certificate" in kinds or "ssl" in kinds:
        what = "its certificate is not trusted: name the authority's file with SSL_CERT_FILE"
    elif "proxy" in kinds or "socks" in kinds:
        what = "the proxy did not let it through: look at HTTPS_PROXY, ALL_PROXY and NO_PROXY"
    elif "name or service" in kinds or "resolution" in kinds or "nodename" in kinds or "getaddrinfo" in kinds:
        what = "its name could not be looked up: look at the network and its DNS"
    else:
        what = "look at the network, a firewall, HTTPS_PROXY and HF_ENDPOINT"
    return (
        f"the hub at {_endpoint()} cannot be reached ({_text(chain[-1])}), and {_cache()} does not hold all that is "
        f"needed: {what}; the model's name was not looked at"
    )


def _disk(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {_cache()} is full: make room, or move the cache with HF_HOME; the download then goes on"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{_cache()} cannot be written ({error.strerror}): give it to this user, or move the cache with HF_HOME"
    if error.errno == errno.ENOENT and error.filename is None:  # as the TLS library has it
        return "a file of certificates is missing: look at SSL_CERT_FILE and SSL_CERT_DIR"
    return f"the download ended early ({_text(error)}): start again, it goes on where it ended"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_transport(error: BaseException) -> bool:
    is_setting = isinstance(error, ImportError | ValueError) and "proxy" in str(error).lower()
    return type(error).__module__.partition(".")[0] in _TRANSPORTS or is_setting


def _status(error: BaseException) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:_MAX_TEXT]


def _at(revision: str | None) -> str:
    return f" at revision {revision}" if revision else ""


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _cache() -> str:
    from huggingface_hub import constants

    return f"the cache {constants.HF_HUB_CACHE}"


def _is_offline() -> bool:
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE
