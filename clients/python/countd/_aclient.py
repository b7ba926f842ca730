"""The client for asyncio, over its streams."""

from __future__ import annotations

import asyncio
import http.client
import io
import ssl
import urllib.parse
import weakref
from typing import Any, AsyncIterator, Callable, Mapping, Optional, Sequence

from ._calls import DEFAULT, Calls, Json, Read, any_call
from ._protocol import ANSWER_BYTES_MAX, IDLE_MAX, Answer, Call, CountdError, Id, Options, Pause, Protocol, Request, Step, no_answer
from ._queue import Failure, Queue

_HEAD_BYTES_MAX = 64 << 10

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncClient(Calls):
    """Client for asyncio: each call returns an awaitable. A cancelled write may have been applied."""

    def __init__(
        self, addrs: str | Sequence[str], *, token: str = "", timeout: float = 5.0, retry_for: float = 30.0,
        on_retry: Optional[Callable[[CountdError, float], None]] = None, tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._protocol = Protocol(addrs, token, Options(timeout, retry_for, on_retry), tls)
        # The keys are the event loop of the connections, and their address.
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, list[_Streams]]] = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes idle connections."""
        for connections in self._idle.pop(asyncio.get_running_loop(), {}).values():
            _drop(connections)

    async def request(self, method: str, path: str, *, query: Mapping[str, Any] = {}, body: Any = None, headers: Mapping[str, str] = {}) -> Any:
        """Makes any call of the API. The client may send a call again, so it adds an Idempotency-Key, unless the call is a GET or has an identity in headers."""
        return await self._make(any_call(method, path, query, body, headers))

    async def scan(self, keyspace: str, *, columns: Optional[Sequence[str]] = None, page_rows: int = 1000, read: Read = DEFAULT) -> AsyncIterator[Json]:
        """Reads all rows that have a count, by ascending id. If rows are written meanwhile, it may return them as of different moments."""
        page: Json = {"cursor": None}
        while "cursor" in page:
            page = await self._scan_page(keyspace, cursor=page["cursor"], limit=page_rows, columns=columns, read=read)
            for row in page["results"]:
                yield row

    async def followees(self, user: Id, *, read: Read = DEFAULT) -> AsyncIterator[str]:
        """Returns the followees of a user, by ascending id."""
        page: Json = {"cursor": None}
        while "cursor" in page:
            page = await self._followees_page(user, cursor=page["cursor"], read=read)
            for followee in page["followees"]:
                yield followee

    def writer(self, *, batch_ops: int = 1000, waiting_ops: int = 100_000, retry_for: float = 30.0, on_failure: Optional[Callable[[Failure], None]] = None) -> AsyncWriter:
        """Merges increments into batches, each counted once."""
        return AsyncWriter(self, Queue(batch_ops, waiting_ops, retry_for, on_failure))

    async def _make(self, call: Call, shape: Callable[[Any], Any] = lambda answer: answer) -> Any:
        return shape(await self._drive(self._protocol.call(call)))

    async def _drive(self, step: Step) -> Any:
        try:
            asked = next(step)
            while True:
                if isinstance(asked, Pause):
                    await asyncio.sleep(asked.seconds)
                    asked = step.send(None)
                    continue
                try:
                    answer = await self._send(asked)
                except CountdError as e:
                    asked = step.throw(e)
                else:
                    asked = step.send(answer)
        except StopIteration as end:
            return end.value

    async def _send(self, request: Request) -> Answer:
        streams: list[_Streams] = []  # has the connection, so that a failure can close it
        idle = self._idle.setdefault(asyncio.get_running_loop(), {}).setdefault(request.base, [])
        try:
            return await asyncio.wait_for(self._exchange(request, streams, idle), request.timeout)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, http.client.HTTPException) as e:
            _drop(idle)  # the server is probably gone, so a repeated call must not try each of these connections
            raise no_answer(request.base, e, not streams) from e
        finally:
            _drop(streams)

    async def _exchange(self, request: Request, streams: list[_Streams], idle: list[_Streams]) -> Answer:
        url = urllib.parse.urlsplit(request.base)
        if idle:
            await asyncio.sleep(0)  # lets the event loop notice connections that the servers have closed
        while idle and (idle[-1][0].at_eof() or idle[-1][1].is_closing()):  # the server has closed the connection
            idle.pop()[1].close()
        if idle:
            streams.append(idle.pop())
        else:
            tls = self._protocol.tls if url.scheme == "https" else None
            streams.append(await asyncio.open_connection(url.hostname, url.port, ssl=tls, limit=_HEAD_BYTES_MAX))
        reader, writer = streams[0]
        sent = request.body or b""
        head = [f"{request.method} {request.target} HTTP/1.1", f"Host: {url.netloc}", f"Content-Length: {len(sent)}"]
        head += [f"{name}: {value}" for name, value in request.headers.items()]
        writer.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + sent)
        await writer.drain()
        status = 0
        while status < 200:  # 1xx comes before the answer
            line, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            status = int(line.split(b" ", 2)[1])
        headers = {name.lower(): value for name, value in http.client.parse_headers(io.BytesIO(rest)).items()}
        keep = line.startswith(b"HTTP/1.1") and headers.get("connection", "").lower() != "close"
        if headers.get("transfer-encoding", "").lower() == "chunked":
            answer = await _chunks(reader)
        elif "content-length" in headers:
            answer = await reader.readexactly(_bounded(int(headers["content-length"])))
        else:
            body, keep = bytearray(), False
            while chunk := await reader.read(_HEAD_BYTES_MAX):
                _bounded(len(body) + len(chunk))
                body += chunk
            answer = bytes(body)
        if keep and len(idle) < IDLE_MAX:
            idle.append(streams.pop())
        return Answer(status, headers, answer)


def _drop(connections: list[_Streams]) -> None:
    while connections:
        connections.pop()[1].close()


def _bounded(size: int) -> int:
    if not 0 <= size <= ANSWER_BYTES_MAX:
        raise CountdError(f"cannot read the answer: it is larger than {ANSWER_BYTES_MAX} bytes")
    return size


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        _bounded(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)


class AsyncWriter:
    """Writer for asyncio, for one event loop. The first add starts a task that sends the batches."""

    def __init__(self, client: AsyncClient, queue: Queue) -> None:
        self._client = client
        self._queue = queue
        self._changed = asyncio.Condition()
        self._task: Optional[asyncio.Task[None]] = None

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def add(self, keyspace: str, id: Id, deltas: Mapping[str, int]) -> None:
        """Queues deltas of a row. If the queue is full, it waits. flush reports whether they are counted."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._queue.put(keyspace, id, deltas))
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            self._changed.notify_all()

    async def flush(self) -> None:
        """Waits until each earlier add is counted or has failed. It raises the first failure since the last flush."""
        async with self._changed:
            waiting = self._queue.unsettled()
            await self._changed.wait_for(lambda: all(batch.settled for batch in waiting))
            self._queue.raise_failure()

    async def close(self) -> None:
        """Refuses further adds, and flushes."""
        async with self._changed:
            self._queue.closed = True
            self._changed.notify_all()
        if self._task:
            await asyncio.wait([self._task])  # wait does not cancel the task if this call is cancelled
        await self.flush()

    async def _run(self) -> None:
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._queue.closed or self._queue.waits())
                    batch = self._queue.take()
                    if batch is None:
                        return
                    self._changed.notify_all()
                try:
                    await self._client._drive(self._queue.send(batch, self._client._protocol))
                except Exception as e:  # on_retry may have raised it
                    self._queue.fail_all(batch, e)
                async with self._changed:
                    self._queue.settle(batch)
                    self._changed.notify_all()
        except asyncio.CancelledError as e:  # the event loop ends
            self._queue.abandon(e)
            async with self._changed:
                self._changed.notify_all()
            raise
