"""The logic of a call, without sockets: a generator that yields requests to send, and pauses.

The clients for threads and for asyncio run the same generators, so that they retry in the same way.
"""

from __future__ import annotations

import dataclasses
import email.utils
import json
import os
import random
import ssl
import time
import urllib.parse
from typing import Any, Callable, Generator, Iterable, Mapping, Optional, Sequence, TypeVar, Union

ADDRS_MAX = 16
TIMEOUT_MAX = 60.0
RETRY_FIRST = 0.05
RETRY_MAX = 5.0
GRACE = 1.0  # how long a try waits after its deadline for the server to report the outcome
IDLE_MAX = 64  # idle connections to one address
ANSWER_BYTES_MAX = 64 << 20

Id = Union[int, str]
_T = TypeVar("_T")


class CountdError(Exception):
    """A call that did not succeed."""

    status = 0  # HTTP status of the refusal; 0 if no server answered
    code = ""  # the code of the error, such as invalid_argument; "" if the answer is not countd's
    field = ""  # the invalid field of the request, such as ops[3].id; "" for none
    retry_after = 0.0  # the pause before a retry that the server asks for, in seconds
    applied: Sequence[str] = ()  # ids of ops that were applied, for a write over several shards
    unknown: Sequence[str] = ()  # ids of ops that may have been applied
    applied_ops: Sequence[int] = ()  # the indexes, in the request, of the ops whose ids are in applied
    unknown_ops: Sequence[int] = ()
    no_answer = False  # no server answered
    _unsent = False  # no connection was made
    # The write may have been applied. It still counts once if the caller repeats it with the same key.
    # If this is False, nothing of the write was applied.
    maybe_applied = False

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.no_answer or self.status in (408, 429, 502, 503, 504)

    def _did_nothing(self) -> bool:
        if self.no_answer or self.applied or self.unknown:
            return self._unsent
        if self.status in (408, 503):
            return self.code != ""  # from countd itself, not from a proxy
        return 400 <= self.status < 500

    def _is_stored(self) -> bool:
        """Whether a column refused every op of the write: any 409 that is not a conflict.

        The server stores such a refusal under the write's key, so it is also valid for earlier tries.
        """
        return self.status == 409 and self.code not in ("idempotency_conflict", "keyspace_exists", "refused", "")


def no_answer(base: str, cause: BaseException, unsent: bool) -> CountdError:
    error = CountdError(f"no answer from {base}: {cause or type(cause).__name__}")
    error.no_answer, error._unsent = True, unsent
    error.__cause__ = cause
    return error


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> CountdError:
    """Returns the error in an answer whose status is not 2xx."""
    try:
        answer = json.loads(body)
        fault = answer["error"]
        if not isinstance(fault["code"], str) or not fault["code"]:
            raise TypeError
        error = CountdError(f"{fault['code']} ({status}): {fault['message']}")
        error.code, error.field = fault["code"], fault.get("field", "")
        error.applied, error.unknown = answer.get("applied", ()), answer.get("unknown", ())
        error.applied_ops, error.unknown_ops = answer.get("applied_ops", ()), answer.get("unknown_ops", ())
    except (ValueError, KeyError, TypeError):  # the answer is not countd's; it may be a proxy's
        text = " ".join(body.decode("utf-8", "replace").split())[:200] or "the answer has no text"
        error = CountdError(f"{status}: {text}")
    error.status = status
    error.retry_after = _retry_after(headers.get("retry-after", ""))
    return error


def _retry_after(value: str) -> float:
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


@dataclasses.dataclass
class Options:
    timeout: float = 5.0  # the deadline of one try, in seconds
    retry_for: float = 30.0  # for how many seconds a call is repeated after its first failure; 0 for no repeat
    on_retry: Optional[Callable[[CountdError, float], None]] = None


@dataclasses.dataclass
class Request:
    method: str
    base: str
    target: str  # path and query
    headers: dict[str, str]
    body: Optional[bytes]
    timeout: float  # in seconds, with the grace


@dataclasses.dataclass
class Pause:
    seconds: float


@dataclasses.dataclass
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


Step = Generator[Union[Request, Pause], Optional[Answer], Any]


@dataclasses.dataclass
class Call:
    method: str
    path: str  # its parts are escaped
    query: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    write: bool = False


class Protocol:
    """The addresses of one cluster, and the index of the address in use."""

    def __init__(self, addrs: str | Sequence[str], token: str, options: Options, tls: Optional[ssl.SSLContext]) -> None:
        addrs = list_of([addrs] if isinstance(addrs, str) else addrs, "addrs")
        if not 1 <= len(addrs) <= ADDRS_MAX:
            raise ValueError(f"addrs: a client needs 1 to {ADDRS_MAX} addresses, not {len(addrs)}")
        if not 0 < options.timeout <= TIMEOUT_MAX:
            raise ValueError(f"timeout: {options.timeout} is not above 0 and at most {TIMEOUT_MAX:.0f}")
        if options.retry_for < 0:
            raise ValueError(f"retry_for: {options.retry_for} is below 0")
        if not printable(token) or " " in token:
            raise ValueError("token: it has characters that no token has")
        self._bases = [base_of(addr, tls is not None) for addr in addrs]
        if tls is None and any(base.startswith("https:") for base in self._bases):
            tls = ssl.create_default_context()
        self.tls = tls
        self._token = token
        self.options = options
        self._current = 0

    def call(self, call: Call, retry_for: Optional[float] = None) -> Step:
        """Makes a call, with retries, and returns the answer's JSON. retry_for overrides the option."""
        headers = dict(call.headers)
        body = None
        if call.body is not None:
            body = json.dumps(call.body, separators=(",", ":"), ensure_ascii=False).encode()
            headers["Content-Type"] = "application/json"
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        headers["Countd-Timeout"] = f"{max(1, round(self.options.timeout * 1000))}ms"
        target = call.path + query_of(call.query)
        if not all(printable(text) for text in (target, *headers, *headers.values())):
            raise ValueError("the path and the headers of a request must be printable ASCII")
        maybe = False  # an earlier try may have written
        end = 0.0
        bound = RETRY_FIRST
        while True:
            for tries in range(len(self._bases)):
                current = self._current
                base = self._bases[current % len(self._bases)]
                try:
                    answer = yield Request(call.method, base, target, headers, body, self.options.timeout + GRACE)
                    assert answer is not None
                    if 200 <= answer.status < 300:
                        return json.loads(answer.body)
                    raise refusal(answer.status, answer.headers, answer.body)
                except CountdError as e:
                    error = e
                except ValueError as e:
                    error = CountdError(f"cannot read the answer of {call.method} {base}{call.path}: {e}")
                maybe = maybe or call.write and not error._did_nothing()
                if not error.no_answer and error.status not in (502, 503):
                    break
                if self._current == current:  # if calls fail concurrently, only the first switches to the next server
                    self._current = current + 1
            error.maybe_applied = maybe and not error._is_stored()
            if not error.retryable:
                raise error
            end = end or time.monotonic() + (self.options.retry_for if retry_for is None else retry_for)
            left = end - time.monotonic()
            if left <= 0:
                raise error
            wait = min(error.retry_after + random.random() * bound, left)
            if self.options.on_retry:
                self.options.on_retry(error, wait)
            yield Pause(wait)
            bound = min(2 * bound, RETRY_MAX)


def printable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def base_of(addr: str, tls: bool) -> str:
    try:
        url = urllib.parse.urlsplit(addr if "://" in addr else f"http{'s' if tls else ''}://{addr}")
        if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/") or url.query or url.username:
            raise ValueError("it has no host, or more than a host and a port")
        port = url.port or (7400 if "://" not in addr else 443 if url.scheme == "https" else 80)
    except (TypeError, ValueError) as e:
        raise ValueError(f"addrs: {addr!r} is not of the form http://host:port: {e}") from e
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{url.scheme}://{host}:{port}"


def query_of(query: Mapping[str, Any]) -> str:
    values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items() if value not in (None, "")}
    return "?" + urllib.parse.urlencode(values) if values else ""


def part(text: str) -> str:
    """Escapes a part of a path."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"{text!r:.80} is not a name, such as 'posts'")
    return urllib.parse.quote(text, safe="")


def list_of(values: Iterable[_T], field: str) -> list[_T]:
    """Returns the values as a list. It raises ValueError for a string, because it would become a list of characters."""
    if isinstance(values, (str, bytes, bytearray, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(f"{field}: {values!r:.80} is not a list")
    return list(values)


def names_of(values: Iterable[str], field: str) -> list[str]:
    names = list_of(values, field)
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name or "," in name:  # the comma separates the names of a query
            raise ValueError(f"{field}[{i}]: {name!r:.80} is not a name")
    return names


def ids_of(ids: Iterable[Id], field: str) -> list[str]:
    return [id_of(id, f"{field}[{i}]") for i, id in enumerate(list_of(ids, field))]


def id_of(value: Id, field: str = "id") -> str:
    """Returns an id as a string. It raises ValueError for a value that no keyspace takes."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{field}: {value!r} is not an int or a str")
    if isinstance(value, int):
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{field}: {value!r} is not an id, a whole number from 0 to 2^64 - 1")
        return str(value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        size = 0
    if not 1 <= size <= 128:
        raise ValueError(f"{field}: {value!r:.80} is not an id, a text of 1 to 128 bytes of UTF-8")
    return value


def id_part(value: Id, field: str = "id") -> str:
    """Returns an id as a part of a path."""
    return part(id_of(value, field))


def int_of(value: int, field: str) -> int:
    """Returns value if it is a whole number of 64 bits. Otherwise it raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{field}: {value!r} is not a whole number of 64 bits")
    return value


def ints_of(values: Mapping[str, int], field: str) -> dict[str, int]:
    if not isinstance(values, Mapping):
        raise ValueError(f"{field}: {values!r:.80} is not a dict of numbers by column")
    if not values:
        raise ValueError(f"{field}: no column")
    return {column: int_of(value, f"{field}.{column}") for column, value in values.items()}


def new_key() -> str:
    """Returns a new Idempotency-Key: a UUIDv7. By its time, a server that has forgotten the key can refuse it."""
    value = bytearray((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))
    value[6] = value[6] & 0x0F | 0x70
    value[8] = value[8] & 0x3F | 0x80
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
