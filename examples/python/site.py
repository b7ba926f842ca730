"""A small site: posts with counts and likes, a home timeline, an unread badge, views in batches.

    python3 site.py 8000 127.0.0.1:7400 …

docs/GUIDE.md walks through it. `?as=7` stands for a signed-in user, COUNTD_TOKEN is the site's own at countd.
"""

import contextlib
import http.server
import itertools
import json
import os
import pathlib
import random
import re
import signal
import sys
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "clients/python"))

from countd import Client, CountdError  # noqa: E402


def lost(failure):
    print(f"lost {failure.add['view']} views of post {failure.id}: {failure.error}", file=sys.stderr)


# A page gives up within seconds; without these, a call is repeated for 30 s.
db = Client(sys.argv[2:], token=os.environ.get("COUNTD_TOKEN", ""), timeout=1, retry_for=1)
views = db.writer(retry_for=10, on_failure=lost)  # sums views in memory, and sends them as fast as the server answers
made = itertools.count(random.getrandbits(22))


def new_post_id():
    """Ids that begin with their second keep old posts together, so that they can move to disk. One process makes no id twice."""
    return int(time.time() - 515483463) << 22 | next(made) % (1 << 22)


def publish(me):
    post = new_post_id()
    db.add_post(me, post)
    return {"id": str(post)}


def show(me, post):
    views.add("posts", post, {"view": 1})
    row = db.get_many("posts", [post], member=me)[0]
    return {"counts": row["counts"], "liked": row["member"]["like"]}


def like(me, author, post):
    r = db.add_member("posts", "like", post, me)
    if r["changed"] or r["duplicate"]:
        # The key makes the notice count once: however often this is repeated, and however often I tap within ten minutes.
        db.incr_unread([{"user": author, "add": {"like": 1}}], key=f"like {post} {me}")
    return {"likes": r["count"]}


def unlike(me, author, post):
    return {"likes": db.remove_member("posts", "like", post, me)["count"]}


def follow(me, author):
    return {"unread": db.follow(me, [author])["unread"]}


def home(me):
    """The newest posts of those I follow, with counts and my likes, in one call. To see it is to have read it."""
    page = db.timeline(me, counts="posts", member=["like"])
    for post in page["posts"]:
        views.add("posts", post["id"], {"view": 1})
    if page["posts"]:
        db.reset_feed_up_to(me, page["posts"][0]["id"])
    return [{"id": p["id"], "author": p["author"], "counts": p["counts"], "liked": p["member"]["like"]} for p in page["posts"]]


def badge(me):
    poll = db.poll(me)
    return {"likes": poll["unread"]["like"], "posts": poll["feed"]}


def seen(me, likes):
    """Takes away what I was shown, so that a like that came meanwhile stays."""
    return {"likes": db.reset_unread(me, seen={"like": int(likes)})["counts"]["like"]}


ROUTES = [
    ("POST", r"/posts", publish), ("GET", r"/posts/(\d+)", show),
    ("POST", r"/users/(\d+)/posts/(\d+)/like", like), ("DELETE", r"/users/(\d+)/posts/(\d+)/like", unlike),
    ("POST", r"/users/(\d+)/follow", follow), ("GET", r"/home", home), ("GET", r"/badge", badge), ("POST", r"/badge/seen/(\d+)", seen),
]


class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def serve(self):
        url = urllib.parse.urlsplit(self.path)
        me = dict(urllib.parse.parse_qsl(url.query)).get("as", "")
        found = [(do, m) for method, path, do in ROUTES if method == self.command and (m := re.fullmatch(path, url.path))]
        try:
            status, answer = (200, found[0][0](me, *found[0][1].groups())) if found else (404, {"error": "no such page"})
        except ValueError as e:
            status, answer = 400, {"error": str(e)}
        except CountdError as e:
            status, answer = 400 if e.code == "invalid_argument" else 503 if e.retryable else 500, {"error": str(e)}
        text = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = serve


for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: sys.exit())
try:
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Site).serve_forever()
finally:
    with contextlib.suppress(CountdError):  # lost has reported it
        views.close()  # counts the views that still wait
