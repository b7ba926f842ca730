"""The client for threads."""

from __future__ import annotations

import atexit
import http.client
import os
import selectors
import socket
import ssl
import threading
import time
import urllib.parse
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from ._calls import DEFAULT, Calls, Json, Read, any_call
from ._protocol import ANSWER_BYTES_MAX, IDLE_MAX, Answer, Call, CountdError, Id, Options, Pause, Protocol, Request, Step, no_answer
from ._queue import Failure, Queue, log


class Client(Calls):
    """Calls the servers of one cluster. Threads may share it; a call blocks its thread.

    addrs are 1 to 16 servers, such as http://10.0.0.1:7400. The client uses one of them until it fails, then the next.
    timeout is the deadline of one try in seconds. retry_for is for how many seconds a call is repeated after its first
    failure; keep it below the server's --key-horizon.
    """

    def __init__(
        self, addrs: str | Sequence[str], *, token: str = "", timeout: float = 5.0, retry_for: float = 30.0,
        on_retry: Optional[Callable[[CountdError, float], None]] = None, tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._protocol = Protocol(addrs, token, Options(timeout, retry_for, on_retry), tls)
        # The keys are the process and the address, because a forked process must not use the connections of its
        # parent. Threads need no lock for append and pop.
        self._idle: dict[tuple[int, str], list[http.client.HTTPConnection]] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections."""
        for address in list(self._idle):
            self._drop(self._idle.pop(address, []))

    def _drop(self, idle: list[http.client.HTTPConnection]) -> None:
        while (connection := _pop(idle)) is not None:
            connection.close()

    def request(self, method: str, path: str, *, query: Mapping[str, Any] = {}, body: Any = None, headers: Mapping[str, str] = {}) -> Any:
        """Makes any call of the API. The client may send a call again, so it adds an Idempotency-Key, unless the call is a GET or has an identity in headers."""
        return self._make(any_call(method, path, query, body, headers))

    def scan(self, keyspace: str, *, columns: Optional[Sequence[str]] = None, page_rows: int = 1000, read: Read = DEFAULT) -> Iterator[Json]:
        """Reads all rows that have a count, by ascending id. If rows are written meanwhile, it may return them as of different moments."""
        page: Json = {"cursor": None}
        while "cursor" in page:
            page = self._scan_page(keyspace, cursor=page["cursor"], limit=page_rows, columns=columns, read=read)
            yield from page["results"]

    def followees(self, user: Id, *, read: Read = DEFAULT) -> Iterator[str]:
        """Returns the followees of a user, by ascending id."""
        page: Json = {"cursor": None}
        while "cursor" in page:
            page = self._followees_page(user, cursor=page["cursor"], read=read)
            yield from page["followees"]

    def writer(self, *, batch_ops: int = 1000, waiting_ops: int = 100_000, retry_for: float = 30.0, on_failure: Optional[Callable[[Failure], None]] = None) -> Writer:
        """Merges increments into batches, each counted once."""
        return Writer(self, Queue(batch_ops, waiting_ops, retry_for, on_failure))

    def _make(self, call: Call, shape: Callable[[Any], Any] = lambda answer: answer) -> Any:
        return shape(self._drive(self._protocol.call(call)))

    def _drive(self, step: Step) -> Any:
        try:
            asked = next(step)
            while True:
                if isinstance(asked, Pause):
                    time.sleep(asked.seconds)
                    asked = step.send(None)
                    continue
                try:
                    answer = self._send(asked)
                except CountdError as e:
                    asked = step.throw(e)
                else:
                    asked = step.send(answer)
        except StopIteration as end:
            return end.value

    def _send(self, request: Request) -> Answer:
        end = time.monotonic() + request.timeout
        idle = self._idle.setdefault((os.getpid(), request.base), [])
        connection = self._connection(request, idle)
        connected = False
        try:
            if connection.sock is None:
                connection.connect()
            connected = True
            self._limit(connection, end)
            # If the server has closed the connection meanwhile, this does not send a write again. The call does, with its key.
            connection.request(request.method, request.target, request.body, request.headers)
            self._limit(connection, end)
            with connection.getresponse() as response:
                body = bytearray()
                while not response.isclosed():
                    self._limit(connection, end)
                    body += (chunk := response.read1(1 << 20))
                    if len(body) > ANSWER_BYTES_MAX:
                        raise CountdError(f"cannot read the answer of {request.base}{request.target}: it is larger than {ANSWER_BYTES_MAX} bytes")
                    if not chunk:
                        break
                if response.length:
                    raise http.client.IncompleteRead(bytes(body), response.length)
                answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, bytes(body))
                keep = response.status >= 200 and not response.will_close
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            self._drop(idle)  # the server is probably gone, so a repeated call must not try each of these connections
            raise no_answer(request.base, e, not connected) from e
        except BaseException:
            connection.close()
            raise
        if keep and len(idle) < IDLE_MAX:
            idle.append(connection)
        else:
            connection.close()
        return answer

    def _limit(self, connection: http.client.HTTPConnection, end: float) -> None:
        left = end - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        if connection.sock:
            connection.sock.settimeout(left)

    def _connection(self, request: Request, idle: list[http.client.HTTPConnection]) -> http.client.HTTPConnection:
        while (connection := _pop(idle)) is not None:
            if not _readable(connection.sock):
                return connection
            connection.close()
        url = urllib.parse.urlsplit(request.base)
        if url.scheme == "https":
            return http.client.HTTPSConnection(url.hostname or "", url.port, timeout=request.timeout, context=self._protocol.tls)
        return http.client.HTTPConnection(url.hostname or "", url.port, timeout=request.timeout)


def _pop(idle: list[http.client.HTTPConnection]) -> Optional[http.client.HTTPConnection]:
    try:
        return idle.pop()
    except IndexError:
        return None


def _readable(sock: socket.socket) -> bool:
    """Reports whether an idle connection has bytes or an end of file to read, which means that the server has closed it."""
    with getattr(selectors, "PollSelector", selectors.SelectSelector)() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


class Writer:
    """Counts each increment of a stream once.

    It adds up the waiting increments of each row. As soon as the server answers the previous batch of a keyspace, it
    sends the next one, without a timer. The result is as if the increments of a row were applied one by one, even at a
    floor. The writer has a thread that sends, and that calls on_failure, which must not call the writer. At the end of
    the program, the writer is closed. If the process dies, waiting increments are lost. A forked process must make its
    own writer.
    """

    def __init__(self, client: Client, queue: Queue) -> None:
        self._client = client
        self._queue = queue
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="countd writer", daemon=True)
        self._thread.start()
        atexit.register(self._exit)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, keyspace: str, id: Id, deltas: Mapping[str, int]) -> None:
        """Queues deltas of a row. If the queue is full, it waits. flush reports whether they are counted."""
        self._check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._queue.put(keyspace, id, deltas))
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until each earlier add is counted or has failed. It raises the first failure since the last flush."""
        self._check_process()
        with self._changed:
            waiting = self._queue.unsettled()
            self._changed.wait_for(lambda: all(batch.settled for batch in waiting))
            self._queue.raise_failure()

    def close(self) -> None:
        """Refuses further adds, and flushes."""
        self._check_process()
        with self._changed:
            self._queue.closed = True
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self._exit)
        self.flush()

    def _exit(self) -> None:
        """Closes the writer at the end of the program. It waits at most for the time that one batch may take."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._queue.closed = True
            self._changed.notify_all()
        self._thread.join(self._queue.retry_for + self._client._protocol.options.timeout)
        with self._changed:
            self._queue.abandon(TimeoutError("the program ends"))
            try:
                self._queue.raise_failure()
            except CountdError as e:
                log.error("cannot count all increments of a writer: %s", e)

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # this process has no sending thread, and the waiting increments belong to the parent
            raise RuntimeError("the writer belongs to the process that this one was forked from: make one after the fork")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue.closed or self._queue.waits())
                batch = self._queue.take()
                if batch is None:
                    return
                self._changed.notify_all()
            try:
                self._client._drive(self._queue.send(batch, self._client._protocol))
            except Exception as e:  # on_retry may have raised it
                self._queue.fail_all(batch, e)
            with self._changed:
                self._queue.settle(batch)
                self._changed.notify_all()
