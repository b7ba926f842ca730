"""Client of countd, a distributed counter database.

All tries of a write have the same Idempotency-Key, so the write counts once. A call returns only with a complete
answer of status 2xx. Otherwise it raises CountdError, whose maybe_applied is True if the write may have counted.
"""

from ._aclient import AsyncClient, AsyncWriter
from ._calls import Read
from ._client import Client, Writer
from ._protocol import CountdError, Id, new_key
from ._queue import Failure

__all__ = ["AsyncClient", "AsyncWriter", "Client", "CountdError", "Failure", "Id", "Read", "Writer", "new_key"]
