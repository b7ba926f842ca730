"""The clients against a server that answers from a list. Each test runs with both clients."""

import asyncio
import concurrent.futures
import gc
import http.server
import inspect
import json
import logging
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import unittest
import warnings

from countd import AsyncClient, Client, CountdError, new_key
from countd._protocol import Call

BUSY = (503, {"error": {"code": "no_leader", "message": "no leader"}})
WRITTEN = (200, {"results": [{"id": "1", "counts": {"like": 1}}], "duplicate": False, "token": "t"})
CUT = ""


class Server:
    """Answers with a list of answers, the last one again and again, and keeps the requests."""

    def __init__(self, *answers):
        self.answers, self.asked, self.gate = list(answers), [], threading.Event()
        self.connections, self.ports = set(), []
        self.gate.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, dict(self.headers.items()), body.decode()))
                outer.connections.add(self.connection)
                outer.ports.append(self.client_address[1])
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                outer.gate.wait(5)
                if isinstance(answer, str):  # the bytes of an answer, perhaps none, in pieces
                    self.close_connection = True
                    for piece in answer.split("|"):
                        self.wfile.write(piece.encode())
                        time.sleep(0.01)
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

        class Listener(http.server.ThreadingHTTPServer):
            request_queue_size = 100

        self.http = Listener(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # a client that went away
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.addr = f"http://127.0.0.1:{self.http.server_port}"

    def cut_connections(self):
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed
        time.sleep(0.05)

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
            ((CUT, (409, {"error": {"code": "a_new_refusal", "message": "no"}})), False), ((CUT, (409, "a proxy")), True),
            ((CUT, (409, {"error": {"code": "idempotency_conflict", "message": "no"}})), True), ((CUT, (409, {"error": {"code": "refused", "message": "no"}})), True),
            (((503, "try later"),), True), (((504, {"error": {"code": "outcome_unknown", "message": "?"}}),), True),
            (((503, {"error": {"code": "no_leader", "message": "?"}, "applied": ["1"]}),), True),
            (((503, {"error": {"code": 503, "message": "upstream", "status": "UNAVAILABLE"}}),), True), (((307, "", {"Location": "http://127.0.0.1:1/"}),), True),
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
                lambda: client.get("posts", -1), lambda: client.get("posts", "x" * 129), lambda: client.get("posts", 1 << 64), lambda: client.get("posts", 1.5),
                lambda: client.get("posts", True), lambda: client.incr("posts", 1, {"like": 1 << 63}), lambda: client.incr("posts", 1, {"like": 0.5}),
                lambda: client.incr("posts", 1, {}), lambda: client.get_many("posts", [1, ""]), lambda: client.add_member("posts", "like", 1, "\ud800"),
            ]:
                self.assertRaises(ValueError, call)
        self.assertEqual(len(s.asked), 1)

    def test_arguments(self):
        """A wrong argument is refused by its name before anything is sent: a string is no list of its characters."""
        with Server((200, {"results": []})) as s:
            c = self.client(s)
            for call, text in [
                (lambda: c.get_many("posts", "4467107636950632"), "ids: '4467107636950632' is not a list"),
                (lambda: c.get_many("posts", 1), "ids: 1 is not a list"),
                (lambda: c.get_many("posts", b"23"), "ids: b'23' is not a list"),
                (lambda: c.get_many("posts", {"1": 2}), "ids: {'1': 2} is not a list"),
                (lambda: c.get_many("posts", None), "ids: None is not a list"),
                (lambda: c.get_many("posts", [1], columns="like"), "columns: 'like' is not a list"),
                (lambda: c.get_many("posts", [1], columns=[7]), r"columns\[0\]: 7 is not a name"),
                (lambda: list(c.scan("posts", columns="like")), "columns: 'like' is not a list"),
                (lambda: c.incr("posts", 1, 1), "add: 1 is not a dict of numbers by column"),
                (lambda: c.incr("posts", 1, {"like": "1"}), "add.like: '1' is not a whole number"),
                (lambda: c.incr_many("posts", [{"id": 1}]), r"ops\[0\].add: it is missing"),
                (lambda: c.incr_many("posts", {"id": 1, "add": {"like": 1}}), "ops: .* is not a list"),
                (lambda: c.incr_many("posts", ["id"]), r"ops\[0\]: 'id' is not a dict"),
                (lambda: c.incr_many("posts", [{"id": 1, "add": {"like": 1}, "flor": 0}]), r"ops\[0\].flor: there is no such field; there are id, add, floor"),
                (lambda: c.set("posts", 1, [1]), r"set: \[1\] is not a dict"),
                (lambda: c.set_many("posts", [{"id": 1}]), r"ops\[0\].set: it is missing"),
                (lambda: c.ops([{"id": 1, "add": {"like": 1}}]), r"ops\[0\].keyspace: it is missing"),
                (lambda: c.ops([{"keyspace": "posts", "id": 1}]), r"ops\[0\].set: it is missing"),
                (lambda: c.change_members("posts", "like", [{"id": 1, "member": 2, "set": "false"}]), r"ops\[0\].set: 'false' is not True or False"),
                (lambda: c.has_member("posts", "like", 7, "12"), "ids: '12' is not a list"),
                (lambda: c.incr_unread([{"id": 1, "add": {"dm": 1}}]), r"ops\[0\].id: there is no such field; there are user, add"),
                (lambda: c.reset_unread(7, columns="like"), "columns: 'like' is not a list"),
                (lambda: c.reset_unread(7, seen="like"), "seen: 'like' is not a dict"),
                (lambda: c.poll(9, channels="news"), "channels: 'news' is not a list"),
                (lambda: c.poll(9, dots="news"), "dots: 'news' is not a list"),
                (lambda: c.poll(9, channels=["a,b"]), r"channels\[0\]: 'a,b' is not a name"),
                (lambda: c.poll_many("78"), "users: '78' is not a list"),
                (lambda: c.poll_many([7], channels="news"), "channels: 'news' is not a list"),
                (lambda: c.poll_many([7], dots="news"), "dots: 'news' is not a list"),
                (lambda: c.follow(9, "23"), "followees: '23' is not a list"),
                (lambda: c.unfollow(9, "23"), "followees: '23' is not a list"),
                (lambda: c.read_feed(9, "23"), "followees: '23' is not a list"),
                (lambda: c.reset_feed(9, "23"), "followees: '23' is not a list"),
                (lambda: c.put_group(9, "stars", "23"), "followees: '23' is not a list"),
                (lambda: c.timeline(9, member="like"), "member: 'like' is not a list"),
                (lambda: c.create_keyspace("x", "like"), "columns: 'like' is not a list"),
                (lambda: c.get(5, 1), "5 is not a name"),
                (lambda: c.get("posts", 1, read="linearizable"), "read: 'linearizable' is not a Read"),
                (lambda: c.incr("posts", 1, {"like": 1}, key=7), "key: 7 is not 1 to 128"),
                (lambda: self.put(c, "posts", 1, 1), "add: 1 is not a dict"),
                (lambda: self.put(c, "posts", "", {"view": 1}), "id: '' is not an id"),
                (lambda: self.put(c, 5, 1, {"view": 1}), "5 is not a name"),
            ]:
                with self.assertRaisesRegex(ValueError, text):
                    call()
            self.assertEqual(s.asked, [])
            c.follow(9, (2, "3"))
            c.follow(9, {4: 1}.keys())
            c.poll(9, channels=("a", "b"))
        self.assertEqual([(path, body) for _, path, _, body in s.asked], [
            ("/v1/feed/9/follow", '{"followees":["2","3"]}'), ("/v1/feed/9/follow", '{"followees":["4"]}'), ("/v1/poll/9?channels=a%2Cb", "")])

    def put(self, client, *args):
        got = client.writer().add(*args)
        if inspect.isawaitable(got):
            client.loop.run_until_complete(got)

    def test_nothing_was_sent_to_a_server_that_refuses_connections(self):
        e = self.fails(self.client("127.0.0.1:1", retry_for=0).incr, "posts", 1, {"like": 1})
        self.assertEqual((e.no_answer, e.maybe_applied), (True, False))
        with Server(CUT) as s:
            e = self.fails(self.client(s, "127.0.0.1:1", retry_for=0).incr, "posts", 1, {"like": 1})
        self.assertTrue(e.maybe_applied)  # the first server may have counted

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

    def test_an_answer_that_is_cut_is_no_answer(self):
        head = "HTTP/1.1 200 OK\r\n"
        for cut in ['Content-Length: 99\r\n\r\n{"results":[]', "Transfer-Encoding: chunked\r\n\r\n2\r\n{"]:
            with Server(head + cut, WRITTEN) as s:
                self.assertEqual(self.client(s).incr("posts", 1, {"like": 1})["counts"], {"like": 1})
            self.assertEqual(len(s.asked), 2)
        with Server("HTTP/1.1 100 Continue\r\n\r\n" + head + '\r\n{"id":|"1"}') as s:  # ends with the connection
            self.assertEqual(self.client(s, retry_for=0).get("posts", 1), {"id": "1"})

    def test_headers_that_cannot_be_sent(self):
        with Server(WRITTEN) as s:
            client = self.client(s)
            for key in ["", " a", "ключ", "a\r\nb", "k" * 129]:
                with self.assertRaises(ValueError):
                    client.incr("posts", 1, {"like": 1}, key=key)
            with self.assertRaises(ValueError):
                client.request("GET", "/v1 HTTP/1.1\r\nX: y")
        self.assertEqual(s.asked, [])
        self.assertRaises(ValueError, self.make, ["a"], token="a b")

    def test_a_bare_address_has_tls_if_the_client_has(self):
        client = self.client("a", "http://b", "https://c", tls=ssl.create_default_context())
        protocol = getattr(client, "wrapped", client)._protocol
        self.assertEqual(protocol._bases, ["https://a:7400", "http://b:80", "https://c:443"])

    def test_any_call_has_a_key(self):
        with Server(BUSY, WRITTEN) as s:
            client = self.client(s)
            client.request("POST", "/v1/ops", body={})
            client.request("GET", "/v1/cluster")
            client.request("POST", "/v1/ops", body={}, headers={"idempotency-key": "mine"})
        keys = [headers.get("Idempotency-Key", headers.get("idempotency-key")) for _, _, headers, _ in s.asked]
        self.assertRegex(keys[0], "^[-0-9a-f]{36}$")
        self.assertEqual(keys, [keys[0], keys[0], None, "mine"])

    def test_connections_that_the_server_closed(self):
        with Server(WRITTEN) as s:
            client = self.client(s, retry_for=0)
            client.incr("posts", 1, {"like": 1})
            s.cut_connections()
            client.incr("posts", 1, {"like": 1})
            client.incr("posts", 1, {"like": 1})
        self.assertNotEqual(s.ports[0], s.ports[1])
        self.assertEqual(s.ports[1], s.ports[2])

    def test_bad_configurations(self):
        for kwargs in [{"timeout": 0}, {"timeout": 61}, {"retry_for": -1}]:
            self.assertRaises(ValueError, self.make, ["a"], **kwargs)
        for addrs in [[], ["ftp://a"], ["http://a/x"], ["a"] * 17, [""], "127.0.0.1:99999", ["127.0.0.1:x"], 5, [5], {"a": 1}, b"a"]:
            with self.assertRaisesRegex(ValueError, "addrs: .*" + (re.escape(repr(addrs[0])) if isinstance(addrs, list) and len(addrs) == 1 else "")):
                self.make(addrs)


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

    def test_many_connections_that_the_server_closed(self):
        retries = []
        with Server(WRITTEN) as s, Client(s.addr, on_retry=lambda e, wait: retries.append(e)) as client, concurrent.futures.ThreadPoolExecutor(30) as pool:
            s.gate.clear()
            calls = [pool.submit(client.incr, "posts", i, {"like": 1}) for i in range(30)]
            while len(s.asked) < 30:
                time.sleep(0.01)
            s.gate.set()
            concurrent.futures.wait(calls)
            client._connection = lambda request, idle: idle.pop() if idle else Client._connection(client, request, idle)  # as if they broke in use
            s.cut_connections()
            client.incr("posts", 31, {"like": 1})
        self.assertEqual(len(retries), 1)

    def exit_without_close(self, addr, lines):
        program = f"from countd import Client\nwriter = Client({addr!r}).writer(retry_for=0)\n" + lines
        ended = subprocess.run([sys.executable, "-c", program], cwd=os.path.dirname(os.path.dirname(__file__)), capture_output=True, text=True, timeout=20)
        return ended.returncode, ended.stderr

    def test_a_writer_that_is_not_closed_counts_at_the_end_of_the_program(self):
        adds = "for i in range(100): writer.add('posts', i, {'view': 1})\n"
        with Server((200, {"applied": 1})) as s:
            self.assertEqual(self.exit_without_close(s.addr, adds), (0, ""))
            counted = [op["id"] for _, _, _, body in s.asked for op in json.loads(body)["ops"]]
            self.assertEqual(sorted(counted, key=int), [str(i) for i in range(100)])
            code, printed = self.exit_without_close(s.addr, adds + "raise SystemExit(3)")
            self.assertEqual((code, printed, len(s.asked) > 1), (3, "", True))
        code, printed = self.exit_without_close("127.0.0.1:1", adds)
        self.assertRegex(printed, r"cannot count all increments of a writer: no answer from http://127.0.0.1:1")
        self.assertNotIn("Traceback", printed)

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_forked_process(self):
        with Server(WRITTEN) as s, Client(s.addr) as client, client.writer() as writer:
            client.incr("posts", 1, {"like": 1})
            child = os.fork()
            if child == 0:
                try:
                    client.incr("posts", 1, {"like": 1})
                    for call in [lambda: writer.add("posts", 1, {"like": 1}), writer.flush, writer.close]:
                        self.assertRaises(RuntimeError, call)
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            client.incr("posts", 1, {"like": 1})
        self.assertNotEqual(s.ports[0], s.ports[1])
        self.assertEqual(s.ports[0], s.ports[2])

    def test_a_writer_whose_callbacks_fail(self):
        logging.disable()
        self.addCleanup(logging.disable, logging.NOTSET)

        def wrong(*_):
            raise KeyError("wrong")

        column = (400, {"error": {"code": "invalid_argument", "message": "no such column", "field": "ops[0].add.x"}})
        with Server(BUSY) as s, Client(s.addr, on_retry=wrong) as client, client.writer() as writer:
            writer.add("posts", 1, {"view": 1})
            self.assertTrue(self.fails(writer.flush).maybe_applied)
            writer.add("posts", 1, {"view\ud800": 1})  # which is no JSON
            self.assertTrue(self.fails(writer.flush).maybe_applied)
        with Server(column, (200, {"applied": 1})) as s, Client(s.addr) as client, client.writer(on_failure=wrong) as writer:
            with writer._changed:
                writer._queue.put("posts", 2, {"x": 1})
                writer._queue.put("posts", 1, {"view": 1})
                writer._changed.notify_all()
            self.assertEqual(self.fails(writer.flush).field, "ops[0].add.x")
        self.assertEqual([json.loads(body)["ops"] for _, _, _, body in s.asked][1:], [[{"id": "1", "add": {"view": 1}}]])

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

    def test_the_end_of_a_writer(self):
        async def run(s):
            failures = []
            async with AsyncClient(s.addr) as client:
                s.gate.clear()
                writer = client.writer()
                await writer.add("posts", 1, {"view": 1})
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(writer.close(), 0.1)
                s.gate.set()
                await writer.close()
                s.gate.clear()
                writer = client.writer(on_failure=lambda f: failures.append((f.id, f.error.maybe_applied)))
                await writer.add("posts", 1, {"view": 1})
                while len(s.asked) < 2:
                    await asyncio.sleep(0.001)
                await writer.add("posts", 2, {"view": 1})
                flush = asyncio.create_task(writer.flush())
                await asyncio.sleep(0)
                writer._task.cancel()  # as the end of asyncio.run does
                with self.assertRaises(CountdError):
                    await asyncio.wait_for(flush, 1)
                with self.assertRaises(RuntimeError):
                    await writer.add("posts", 3, {"view": 1})
                await writer.close()
                s.gate.set()
            self.assertEqual(failures, [("2", False), ("1", True)])
            self.assertEqual(logged.output, ["WARNING:countd:cannot count 2 ops of a writer that was not closed: CancelledError: "])

        with Server((200, {"applied": 1})) as s, self.assertLogs("countd") as logged:
            asyncio.run(run(s))

    def test_loops_one_after_the_other(self):
        with Server(WRITTEN) as s, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # neither loop closes its connections
            client = AsyncClient(s.addr)
            for _ in range(2):
                asyncio.run(client._make(Call("GET", "/v1/keyspaces")))
            del client
            gc.collect()

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
