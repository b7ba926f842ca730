"""Client of countd, a distributed counter database.

Each write carries one Idempotency-Key over all its tries, so it counts once however often it is sent. A call
returns only with a whole answer of status 2xx; otherwise it raises CountdError, whose maybe_applied tells whether
the write may have counted.
"""

from ._aclient import AsyncClient, AsyncWriter
from ._calls import Read
from ._client import Client, Writer
from ._protocol import CountdError, Id, new_key
from ._queue import Failure

__all__ = ["AsyncClient", "AsyncWriter", "Client", "CountdError", "Failure", "Id", "Read", "Writer", "new_key"]
