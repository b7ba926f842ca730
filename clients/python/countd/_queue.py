"""The logic of a writer, without threads or tasks: it merges the increments of a keyspace into numbered batches."""

from __future__ import annotations

import collections
import dataclasses
import logging
import re
import time
import uuid
from typing import Any, Callable, Mapping, Optional

from ._protocol import Call, CountdError, Id, Protocol, Step, id_of, ints_of, part

log = logging.getLogger("countd")

_SESSION_AGE_MAX = 3600.0  # far below the day after which a server forgets a producer
_COLUMN = re.compile(r"ops\[\d+\]\.add\.(.+)")
_OP = re.compile(r"ops\[(\d+)\]")


@dataclasses.dataclass
class Failure:
    """An op that was not counted. If error.maybe_applied is True, it may have been counted."""

    keyspace: str
    id: str
    add: Mapping[str, int]  # the sum of one or more adds
    error: CountdError


class Batch:
    """Ops of one keyspace."""

    def __init__(self, keyspace: str) -> None:
        self.keyspace = keyspace
        self.ops: list[dict[str, Any]] = []
        self.newest: dict[str, dict[str, Any]] = {}  # by id
        self.settled = False


@dataclasses.dataclass
class _Session:
    producer: str
    born: float
    seq: int = 0


class Queue:
    """The waiting increments. Callers hold a lock, except for send, which only the sender calls."""

    def __init__(self, batch_ops: int, waiting_ops: int, retry_for: float, on_failure: Optional[Callable[[Failure], None]]) -> None:
        if not 1 <= batch_ops <= 10_000:
            raise ValueError(f"batch_ops: {batch_ops} is not between 1 and 10,000")
        if waiting_ops < 1:
            raise ValueError(f"waiting_ops: {waiting_ops} is below 1")
        if not 0 <= retry_for <= _SESSION_AGE_MAX:
            raise ValueError(f"retry_for: {retry_for} is not between 0 and an hour")
        self._batch_ops, self._waiting_ops, self.retry_for, self._on_failure = batch_ops, waiting_ops, retry_for, on_failure
        self._batches: collections.deque[Batch] = collections.deque()  # the oldest first
        self._filling: dict[str, Batch] = {}  # by keyspace: the newest batch, if it still waits
        self._flying: Optional[Batch] = None
        self._sessions: dict[str, _Session] = {}  # by keyspace
        self._waiting = 0
        self._failed: Optional[CountdError] = None
        self.closed = False

    def put(self, keyspace: str, id: Id, deltas: Mapping[str, int]) -> bool:
        """Queues deltas. It returns False while the queue is full."""
        row, add = id_of(id), ints_of(deltas, "add")
        part(keyspace)
        if self.closed:
            raise RuntimeError("the writer is closed")
        batch = self._filling.get(keyspace)
        if batch is not None and _merge(batch.newest.get(row), add):
            return True
        if self._waiting >= self._waiting_ops:
            return False
        if batch is None or len(batch.ops) >= self._batch_ops:
            batch = self._filling[keyspace] = Batch(keyspace)
            self._batches.append(batch)
        op = {"id": row, "add": add}
        batch.ops.append(op)
        batch.newest[row] = op
        self._waiting += 1
        return True

    def waits(self) -> bool:
        return bool(self._batches)

    def take(self) -> Optional[Batch]:
        """Removes and returns the oldest batch. The caller sends one batch at a time, so the increments of a row keep their order."""
        if not self._batches:
            return None
        batch = self._batches.popleft()
        if self._filling.get(batch.keyspace) is batch:
            del self._filling[batch.keyspace]
        self._waiting -= len(batch.ops)
        self._flying = batch
        return batch

    def settle(self, batch: Batch) -> None:
        batch.settled, self._flying = True, None

    def unsettled(self) -> list[Batch]:
        return [*self._batches, *([self._flying] if self._flying else [])]

    def raise_failure(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def send(self, batch: Batch, protocol: Protocol) -> Step:
        """Makes the calls that a batch needs, usually one."""
        ops, renewed = batch.ops, False
        while ops:
            session = self._sessions.get(batch.keyspace)
            if session is None or time.monotonic() - session.born > _SESSION_AGE_MAX:
                session = self._sessions[batch.keyspace] = _Session(uuid.uuid4().hex, time.monotonic())
            session.seq += 1
            headers = {"Countd-Producer": session.producer, "Countd-Seq": str(session.seq)}
            call = Call("POST", f"/v1/counters/{part(batch.keyspace)}/incr", body={"want": "none", "ops": ops}, headers=headers, write=True)
            try:
                answer = yield from protocol.call(call, self.retry_for)
            except CountdError as e:
                error = e
            else:
                self._fail_refused(batch, ops, answer)
                return
            found = _COLUMN.fullmatch(error.field)
            wrong = [op for op in ops if found and found[1] in op["add"]]
            if error.status == 400 and not error.maybe_applied and wrong:
                for op in wrong:  # the server applied nothing, so the other ops can be sent again
                    self._fail(batch, op, error)
                ops = [op for op in ops if found and found[1] not in op["add"]]
                continue
            if error.status == 410:
                del self._sessions[batch.keyspace]
                if not error.maybe_applied and not renewed:
                    renewed = True
                    continue
            for op in ops:
                self._fail(batch, op, error)
            return

    def _fail_refused(self, batch: Batch, ops: list[dict[str, Any]], answer: Mapping[str, Any]) -> None:
        for refused in answer.get("errors", ()):
            fault = refused["error"]
            at = _OP.match(fault.get("field", ""))
            if at and int(at[1]) < len(ops):
                error = CountdError(f"{fault['code']}: {fault['message']}")
                error.code, error.field = fault["code"], fault["field"]
                self._fail(batch, ops[int(at[1])], error)
        unknown = list(answer.get("unknown", ()))
        for op in ops:
            if unknown and unknown[0] == op["id"]:
                del unknown[0]
                error = CountdError("the sums of some rows of its shard did not fit")
                error.maybe_applied = True
                self._fail(batch, op, error)

    def fail_all(self, batch: Batch, cause: BaseException, sent: bool = True) -> None:
        """Fails the ops of a batch if sending it raised an exception that no server caused."""
        error = CountdError(f"{type(cause).__name__}: {cause}")
        error.__cause__, error.maybe_applied = cause, sent
        for op in batch.ops:
            self._fail(batch, op, error)

    def abandon(self, cause: BaseException) -> None:
        """Fails all unsettled ops, and refuses further increments, because nothing sends any more."""
        self.closed = True
        if lost := sum(len(batch.ops) for batch in self.unsettled()):
            log.warning("cannot count %d ops of a writer that was not closed: %s: %s", lost, type(cause).__name__, cause)
        for batch in self.unsettled():
            self.fail_all(batch, cause, batch is self._flying)
            batch.settled = True
        self._batches.clear()

    def _fail(self, batch: Batch, op: Mapping[str, Any], error: CountdError) -> None:
        self._failed = self._failed or error
        try:
            if self._on_failure:
                self._on_failure(Failure(batch.keyspace, op["id"], op["add"], error))
        except Exception:
            log.exception("on_failure failed")


def _merge(op: Optional[dict[str, Any]], add: Mapping[str, int]) -> bool:
    """Adds deltas to a waiting op. It returns False if the sum would change the effect of floors, or would not fit."""
    if op is None:
        return False
    sums = {}
    for column, delta in add.items():
        was = op["add"].get(column, 0)
        sums[column] = was + delta
        if was and (was < 0) != (delta < 0) or not -(1 << 63) <= sums[column] < 1 << 63:
            return False
    op["add"].update(sums)
    return True
