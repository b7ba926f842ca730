"""The driver of the Python clients, threads and asyncio: see README.md."""

import asyncio
import concurrent.futures
import inspect
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))

from countd import AsyncClient, Client, CountdError, Read  # noqa: E402

kind, *addrs = sys.argv[1:]
loop = asyncio.new_event_loop()
client = (AsyncClient if kind == "asyncio" else Client)(addrs, timeout=2, retry_for=60)


def count(keyspace, column, ids, at_once):
    """Adds 1 to a column of each row of a list, several at once, and then again through a writer."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda id: client.incr(keyspace, id, {column: 1}), ids))
    with client.writer(retry_for=60, batch_ops=50) as writer:
        for id in ids:
            writer.add(keyspace, id, {column: 1})
    return len(ids)


async def count_async(keyspace, column, ids, at_once):
    left = list(ids)

    async def work():
        while left:
            await client.incr(keyspace, left.pop(), {column: 1})

    await asyncio.gather(*(work() for _ in range(at_once)))
    async with client.writer(retry_for=60, batch_ops=50) as writer:
        for id in ids:
            await writer.add(keyspace, id, {column: 1})
    return len(ids)


def run(call, args):
    if call == "count":
        return loop.run_until_complete(count_async(*args)) if kind == "asyncio" else count(*args)
    method = getattr(client, re.sub("[A-Z]", lambda m: "_" + m[0].lower(), call))
    positional = [p for p in inspect.signature(method).parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
    named = {}
    while args and isinstance(args[-1], dict) and (len(args) > len(positional) or call == "readNotices"):
        named.update(args.pop())
    if call == "resetFeed" and isinstance(args[-1], dict):
        named.update(args.pop())
    if "consistency" in named:
        named["read"] = Read(named.pop("consistency"))
    if "pageRows" in named:
        named["page_rows"] = named.pop("pageRows")
    got = method(*args, **named)
    if inspect.isasyncgen(got):
        return loop.run_until_complete(collect(got))
    if inspect.isawaitable(got):
        return loop.run_until_complete(got)
    return list(got) if inspect.isgenerator(got) else got


async def collect(items):
    return [item async for item in items]


for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = {"ok": run(asked["call"], asked["args"])}
    except CountdError as e:
        answer = {"error": {"code": e.code, "status": e.status, "field": e.field, "maybe_applied": e.maybe_applied, "message": str(e)}}
    print(json.dumps(answer), flush=True)
