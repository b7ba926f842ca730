"""The clients against a server that answers from a list. Each test runs with both clients."""

import asyncio
import http.server
import inspect
import json
import re
import threading
import time
import unittest

from countd import AsyncClient, Client, CountdError, new_key

BUSY = (503, {"error": {"code": "no_leader", "message": "no leader"}})
WRITTEN = (200, {"results": [{"id": "1", "counts": {"like": 1}}], "duplicate": False, "token": "t"})
CUT = "cut"


class Server:
    """Answers with a list of answers, the last one again and again, and keeps the requests."""

    def __init__(self, *answers):
        self.answers, self.asked, self.gate = list(answers), [], threading.Event()
        self.gate.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, dict(self.headers.items()), body.decode()))
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                outer.gate.wait(5)
                if answer == CUT:
                    self.close_connection = True
                    return
                status, value, *headers = answer
                text = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                self.send_response(status)
                for name, header in (headers[0] if headers else {}).items():
                    self.send_header(name, header)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = serve

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # a client that went away
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.addr = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


class Sync:
    """AsyncClient behind the methods of Client."""

    def __init__(self, *args, **kwargs):
        self.wrapped = AsyncClient(*args, **kwargs)
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name):
        def call(*args, **kwargs):
            async def run():
                got = getattr(self.wrapped, name)(*args, **kwargs)
                if inspect.isasyncgen(got):
                    return [item async for item in got]
                return await got if inspect.isawaitable(got) else got

            return self.loop.run_until_complete(run())

        return call

    def close(self):
        self.loop.run_until_complete(self.wrapped.close())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


class Cases:
    make = None

    def client(self, *servers, **kwargs):
        client = self.make([getattr(s, "addr", s) for s in servers], **kwargs)
        self.addCleanup(client.close)
        return client

    def fails(self, call, *args, **kwargs):
        with self.assertRaises(CountdError) as got:
            call(*args, **kwargs)
        return got.exception

    def test_a_write_has_one_key_over_all_its_tries(self):
        waits = []
        with Server(CUT, BUSY, (429, {"error": {"code": "overloaded", "message": "busy"}}), WRITTEN) as s:
            got = self.client(s, on_retry=lambda e, wait: waits.append(e.code)).incr("posts", 1, {"like": 1})
        self.assertEqual(got, {"id": "1", "counts": {"like": 1}, "duplicate": False, "token": "t"})
        self.assertEqual(len({headers["Idempotency-Key"] for _, _, headers, _ in s.asked}), 1)
        self.assertEqual(waits, ["", "no_leader", "overloaded"])
        self.assertEqual(s.asked[0][3], '{"ops":[{"id":"1","add":{"like":1}}]}')

    def test_the_next_address(self):
        with Server(BUSY) as a, Server(WRITTEN) as b:
            client = self.client("127.0.0.1:1", a, b, retry_for=0)
            client.incr("posts", 1, {"like": 1})
            client.incr("posts", 1, {"like": 1})
        self.assertEqual((len(a.asked), len(b.asked)), (1, 2))

    def test_retry_after(self):
        with Server((503, {"error": {"code": "draining", "message": "later"}}, {"Retry-After": "1"}), WRITTEN) as s:
            began = time.monotonic()
            self.client(s).incr("posts", 1, {"like": 1})
            self.assertGreaterEqual(time.monotonic() - began, 1)
        with Server((503, {"error": {"code": "draining", "message": "later"}}, {"Retry-After": "7"})) as s:
            e = self.fails(self.client(s, retry_for=0.05).incr, "posts", 1, {"like": 1})
        self.assertEqual((e.status, e.code, e.retry_after, e.maybe_applied, len(s.asked)), (503, "draining", 7, False, 2))

    def test_maybe_applied(self):
        wrong = (400, {"error": {"code": "invalid_argument", "message": "no", "field": "ops[0].add.x"}})
        for answers, maybe in [
            ((wrong,), False), ((CUT, wrong), True), ((CUT, (409, {"error": {"code": "overflow", "message": "no"}})), False),
            (((503, "try later"),), True), (((504, {"error": {"code": "outcome_unknown", "message": "?"}}),), True),
            (((503, {"error": {"code": "no_leader", "message": "?"}, "applied": ["1"]}),), True),
        ]:
            with Server(*answers) as s:
                e = self.fails(self.client(s, retry_for=0.01).incr, "posts", 1, {"x": 1})
            self.assertEqual(e.maybe_applied, maybe, answers)

    def test_numbers(self):
        big = '{"id":"18446744073709551615","counts":{"like":9223372036854775807}}'
        with Server((200, big)) as s:
            client = self.client(s)
            self.assertEqual(client.get("posts", (1 << 64) - 1)["counts"]["like"], (1 << 63) - 1)
            for call in [
                lambda: client.get("posts", -1), lambda: client.get("posts", "01"), lambda: client.get("posts", 1 << 64), lambda: client.get("posts", 1.5),
                lambda: client.get("posts", True), lambda: client.incr("posts", 1, {"like": 1 << 63}), lambda: client.incr("posts", 1, {"like": 0.5}),
                lambda: client.incr("posts", 1, {}), lambda: client.get_many("posts", [1, ""]), lambda: client.add_member("posts", "like", 1, "x"),
            ]:
                self.assertRaises(ValueError, call)
        self.assertEqual(len(s.asked), 1)

    def test_reads(self):
        from countd import Read

        with Server((200, {"id": "1", "counts": {}})) as s:
            client = self.client(s, token="ctd_x", timeout=0.9)
            client.get("a/b", 1, read=Read("bounded", 0.25, "tok"))
        method, path, headers, _ = s.asked[0]
        self.assertEqual((method, path), ("GET", "/v1/counters/a%2Fb/1?consistency=bounded&max_staleness=250ms"))
        self.assertEqual([headers[name] for name in ("Countd-Token", "Countd-Timeout", "Authorization")], ["tok", "900ms", "Bearer ctd_x"])

    def test_scan(self):
        with Server((200, {"results": [{"id": "1"}], "cursor": "c1"}), (200, {"results": [{"id": "2"}]})) as s:
            self.assertEqual([row["id"] for row in self.client(s).scan("posts", page_rows=1)], ["1", "2"])
        self.assertEqual([body for _, _, _, body in s.asked], ['{"limit":1}', '{"cursor":"c1","limit":1}'])

    def test_a_server_that_does_not_answer(self):
        with Server(WRITTEN) as s:
            s.gate.clear()
            e = self.fails(self.client(s, timeout=0.01, retry_for=0).incr, "posts", 1, {"like": 1})
            s.gate.set()
        self.assertTrue(e.no_answer and e.maybe_applied, e)

    def test_bad_configurations(self):
        for kwargs in [{"timeout": 0}, {"timeout": 61}, {"retry_for": -1}]:
            self.assertRaises(ValueError, self.make, ["a"], **kwargs)
        for addrs in [[], ["ftp://a"], ["http://a/x"], ["a"] * 17]:
            self.assertRaises(ValueError, self.make, addrs)


class SyncTest(Cases, unittest.TestCase):
    make = Client

    def test_writer(self):
        with Server((200, {"applied": 1, "duplicate": False, "token": "t"})) as s, self.client(s) as client:
            s.gate.clear()
            writer = client.writer(waiting_ops=3)
            writer.add("posts", 1, {"view": 1})
            while not s.asked:
                time.sleep(0.001)
            for n in [1, 2, -1, -2, 5]:
                writer.add("posts", 1, {"view": n})
            full = threading.Thread(target=writer.add, args=("posts", 2, {"view": 1}))
            full.start()
            full.join(0.05)
            self.assertTrue(full.is_alive())
            s.gate.set()
            full.join()
            writer.close()
            self.assertRaises(RuntimeError, writer.add, "posts", 1, {"view": 1})
        self.check_batches(s)

    def check_batches(self, s):
        ops = [json.loads(body)["ops"] for _, _, _, body in s.asked]
        want = [[{"id": "1", "add": {"view": 1}}], [{"id": "1", "add": {"view": 3}}, {"id": "1", "add": {"view": -3}}, {"id": "1", "add": {"view": 5}}], [{"id": "2", "add": {"view": 1}}]]
        self.assertEqual(ops, want)
        self.assertEqual([headers["Countd-Seq"] for _, _, headers, _ in s.asked], ["1", "2", "3"])
        self.assertEqual(len({headers["Countd-Producer"] for _, _, headers, _ in s.asked}), 1)

    def test_failures_of_a_writer(self):
        wrong = (400, {"error": {"code": "invalid_argument", "message": "no such column", "field": "ops[1].add.x"}})
        expired = (410, {"error": {"code": "idempotency_expired", "message": "too old"}})
        partly = (200, {"applied": 1, "failed": 1, "errors": [{"id": "1", "error": {"code": "overflow", "message": "no", "field": "ops[0].add.view"}}]})
        failures = []
        with Server(wrong, expired, partly) as s, self.client(s) as client:
            s.gate.clear()
            writer = client.writer(on_failure=lambda f: failures.append((f.id, dict(f.add), f.error.code, f.error.maybe_applied)))
            with writer._changed:
                writer._queue.put("posts", 1, {"view": 1})
                writer._queue.put("posts", 2, {"x": 1})
                writer._changed.notify_all()
            s.gate.set()
            self.assertEqual(self.fails(writer.flush).field, "ops[1].add.x")
            writer.flush()
            writer.close()
        self.assertEqual(failures, [("2", {"x": 1}, "invalid_argument", False), ("1", {"view": 1}, "overflow", False)])
        self.assertNotEqual(s.asked[1][2]["Countd-Producer"], s.asked[2][2]["Countd-Producer"])

    def test_keys(self):
        a = new_key()
        time.sleep(0.003)
        b = new_key()
        self.assertRegex(a, re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"))
        self.assertLess(a[:13], b[:13])


class AsyncTest(Cases, unittest.TestCase):
    make = Sync

    def test_writer(self):
        async def run(s):
            async with AsyncClient(s.addr) as client:
                s.gate.clear()
                writer = client.writer(waiting_ops=3)
                await writer.add("posts", 1, {"view": 1})
                while not s.asked:
                    await asyncio.sleep(0.001)
                for n in [1, 2, -1, -2, 5]:
                    await writer.add("posts", 1, {"view": n})
                full = asyncio.create_task(writer.add("posts", 2, {"view": 1}))
                done, _ = await asyncio.wait([full], timeout=0.05)
                self.assertFalse(done)
                s.gate.set()
                await full
                await writer.close()

        with Server((200, {"applied": 1, "duplicate": False, "token": "t"})) as s:
            asyncio.run(run(s))
        SyncTest.check_batches(self, s)

    def test_many_calls_at_once(self):
        async def run(s):
            async with AsyncClient(s.addr) as client:
                await asyncio.gather(*(client.incr("posts", i, {"like": 1}) for i in range(50)))
                task = asyncio.create_task(client.incr("posts", 51, {"like": 1}))
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await client.incr("posts", 52, {"like": 1})

        with Server(WRITTEN) as s:
            asyncio.run(run(s))
        self.assertGreaterEqual(len(s.asked), 51)


if __name__ == "__main__":
    unittest.main()
