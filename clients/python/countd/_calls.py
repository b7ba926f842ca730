"""The calls of the API. Client and AsyncClient make them; in AsyncClient each returns an awaitable."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from ._protocol import Call, Id, id_of, id_part, ids_of, int_of, ints_of, list_of, names_of, new_key, part, printable

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Read:
    """How fresh a read must be. The default is the server's."""

    consistency: Optional[str] = None  # stale, bounded or linearizable
    max_staleness: Optional[float] = None  # for a bounded read, in seconds
    token: Optional[str] = None  # the token of a write that the read must see


DEFAULT = Read()


class Calls:
    """The calls. In answers, counts are int and ids are str."""

    def _make(self, call: Call, shape: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """Makes a call and returns shape(answer)."""
        raise NotImplementedError

    def _read(self, path: str, read: Read, query: Optional[Mapping[str, Any]] = None, body: Any = None, shape: Callable[[Any], Any] = lambda answer: answer) -> Any:
        if not isinstance(read, Read):
            raise ValueError(f"read: {read!r:.80} is not a Read")
        asked = {**(query or {}), "consistency": read.consistency}
        if read.max_staleness is not None:
            asked["max_staleness"] = f"{round(read.max_staleness * 1000)}ms"
        headers = {"Countd-Token": read.token} if read.token else {}
        return self._make(Call("GET" if body is None else "POST", path, asked, body, headers), shape)

    def _write(self, method: str, path: str, body: Any, key: Optional[str], shape: Callable[[Any], Any] = lambda answer: answer) -> Any:
        key = new_key() if key is None else key
        if not isinstance(key, str) or not 1 <= len(key) <= 128 or not printable(key) or key != key.strip():
            raise ValueError(f"key: {key!r} is not 1 to 128 printable ASCII characters without spaces around")
        return self._make(Call(method, path, body=body, headers={"Idempotency-Key": key}, write=True), shape)

    # Counters.

    def get(self, keyspace: str, id: Id, *, read: Read = DEFAULT) -> Any:
        """Reads a row. A row that was never written has zeros."""
        return self._read(f"/v1/counters/{part(keyspace)}/{id_part(id)}", read)

    def get_many(self, keyspace: str, ids: Sequence[Id], *, columns: Optional[Sequence[str]] = None, member: Optional[Id] = None, read: Read = DEFAULT) -> Any:
        """Reads up to 1,000 rows, in the order of ids. With a member, each row also names its sets that contain the member."""
        body = {"ids": ids_of(ids, "ids"), **_given(columns=None if columns is None else names_of(columns, "columns"), member=None if member is None else id_of(member, "member"))}
        return self._read(f"/v1/counters/{part(keyspace)}/get", read, body=body, shape=operator.itemgetter("results"))

    def incr(self, keyspace: str, id: Id, add: Mapping[str, int], *, floor: Optional[int] = None, key: Optional[str] = None) -> Any:
        """Adds to columns of one row, and returns the new row. A sum beyond 64 bits is refused: overflow."""
        op = {"id": id_of(id), "add": ints_of(add, "add"), **_given(floor=None if floor is None else int_of(floor, "floor"))}
        return self._write("POST", f"/v1/counters/{part(keyspace)}/incr", {"ops": [op]}, key, _one)

    def incr_many(self, keyspace: str, ops: Sequence[Mapping[str, Any]], *, key: Optional[str] = None) -> Any:
        """Adds to up to 10,000 rows: {"id", "add", "floor"?} each. If a sum exceeds 64 bits, only its op is refused."""
        return self._write("POST", f"/v1/counters/{part(keyspace)}/incr", {"ops": _ops(ops, _incr)}, key)

    def set(self, keyspace: str, id: Id, values: Mapping[str, int], *, key: Optional[str] = None) -> Any:
        """Sets columns of one row. The other columns keep their counts."""
        return self._write("PUT", f"/v1/counters/{part(keyspace)}/{id_part(id)}", {"set": ints_of(values, "set")}, key)

    def set_many(self, keyspace: str, ops: Sequence[Mapping[str, Any]], *, key: Optional[str] = None) -> Any:
        """Sets columns of up to 10,000 rows: {"id", "set"} each."""
        return self._write("POST", f"/v1/counters/{part(keyspace)}/set", {"ops": _ops(ops, _set)}, key)

    def delete(self, keyspace: str, id: Id, *, key: Optional[str] = None) -> Any:
        """Sets every column of a row to zero."""
        return self._write("DELETE", f"/v1/counters/{part(keyspace)}/{id_part(id)}", None, key)

    def _scan_page(self, keyspace: str, *, cursor: Optional[str] = None, limit: int = 1000, columns: Optional[Sequence[str]] = None, read: Read = DEFAULT) -> Any:
        """Reads a page of the rows that have a count, by ascending id: {"results", "cursor"?}. cursor is for the next page."""
        return self._read(f"/v1/counters/{part(keyspace)}/scan", read, body=_given(cursor=cursor, limit=limit, columns=None if columns is None else names_of(columns, "columns")))

    def hot(self, keyspace: str, column: str, *, window: Optional[str] = None, limit: Optional[int] = None, read: Read = DEFAULT) -> Any:
        """Returns the rows that gained most of a column in a window (1m, 1h or 24h), largest first. The true gain is within error of gained; no other row gained more than others_at_most."""
        return self._read(f"/v1/hot/{part(keyspace)}/{part(column)}", read, {"window": window, "limit": limit})

    def top(self, keyspace: str, column: str, *, limit: Optional[int] = None, read: Read = DEFAULT) -> Any:
        """Returns the rows with the exact largest counts of a column. The first call for a column reads all rows. Meanwhile, calls may fail with not_ready."""
        return self._read(f"/v1/top/{part(keyspace)}/{part(column)}", read, {"limit": limit}, shape=operator.itemgetter("results"))

    def ops(self, ops: Sequence[Mapping[str, Any]], *, key: Optional[str] = None) -> Any:
        """Writes to rows of any keyspaces under one key: up to 10,000 ops. The ops of one shard are applied together.

        An op is {"keyspace", "id", "add", "floor"?}, {"keyspace", "id", "set"}, {"keyspace", "column", "id", "member", "set"} or {"user", "add", "floor"?}.
        """
        return self._write("POST", "/v1/ops", {"ops": _ops(ops, _any)}, key)

    # Members: who did it.

    def add_member(self, keyspace: str, column: str, id: Id, member: Id, *, key: Optional[str] = None) -> Any:
        """Adds a member to the set of a row. If the set did not contain the member, the row's count grows by 1."""
        op = {"id": id_of(id), "member": id_of(member, "member"), "set": True}
        return self._write("POST", f"/v1/members/{part(keyspace)}/{part(column)}", {"ops": [op]}, key, _one)

    def remove_member(self, keyspace: str, column: str, id: Id, member: Id, *, key: Optional[str] = None) -> Any:
        """Removes a member from the set of a row. If the set contained the member, the row's count drops by 1."""
        op = {"id": id_of(id), "member": id_of(member, "member"), "set": False}
        return self._write("POST", f"/v1/members/{part(keyspace)}/{part(column)}", {"ops": [op]}, key, _one)

    def change_members(self, keyspace: str, column: str, ops: Sequence[Mapping[str, Any]], *, key: Optional[str] = None) -> Any:
        """Adds and removes up to 10,000 members, in the order of ops: {"id", "member", "set"} each."""
        return self._write("POST", f"/v1/members/{part(keyspace)}/{part(column)}", {"ops": _ops(ops, _member)}, key)

    def has_member(self, keyspace: str, column: str, member: Id, ids: Sequence[Id], *, read: Read = DEFAULT) -> Any:
        """Reports, for each of up to 1,000 rows, whether its set contains the member. Results are in the order of ids."""
        body = {"member": id_of(member, "member"), "ids": ids_of(ids, "ids")}
        return self._read(f"/v1/members/{part(keyspace)}/{part(column)}/check", read, body=body, shape=operator.itemgetter("results"))

    def members(self, keyspace: str, column: str, id: Id, *, cursor: Optional[str] = None, limit: Optional[int] = None, read: Read = DEFAULT) -> Any:
        """Returns a page of the members of a row, newest first."""
        return self._read(f"/v1/members/{part(keyspace)}/{part(column)}/{id_part(id)}", read, {"cursor": cursor, "limit": limit})

    def rows_of(self, keyspace: str, column: str, member: Id, *, cursor: Optional[str] = None, limit: Optional[int] = None, read: Read = DEFAULT) -> Any:
        """Returns a page of the rows whose sets contain a member, newest first."""
        return self._read(f"/v1/members/{part(keyspace)}/{part(column)}/of/{id_part(member, 'member')}", read, {"cursor": cursor, "limit": limit})

    # Unread numbers.

    def unread(self, user: Id, *, read: Read = DEFAULT) -> Any:
        """Reads a user's own unread numbers."""
        return self._read(f"/v1/unread/{id_part(user, 'user')}", read)

    def incr_unread(self, ops: Sequence[Mapping[str, Any]], *, key: Optional[str] = None) -> Any:
        """Adds to unread numbers of up to 10,000 users: {"user", "add", "floor"?} each. No number drops below 0."""
        return self._write("POST", "/v1/unread/incr", {"ops": _ops(ops, _incr_user)}, key)

    def reset_unread(self, user: Id, *, columns: Optional[Sequence[str]] = None, seen: Optional[Mapping[str, int]] = None, key: Optional[str] = None) -> Any:
        """Sets columns of a user to zero, or subtracts the numbers that the user was shown (seen), so that later increments stay."""
        return self._write("POST", f"/v1/unread/{id_part(user, 'user')}/reset", _given(columns=None if columns is None else names_of(columns, "columns"), seen=None if seen is None else ints_of(seen, "seen")), key)

    def poll(self, user: Id, *, channels: Sequence[str] = (), dots: Sequence[str] = (), read: Read = DEFAULT) -> Any:
        """Returns all unread numbers of a user: counts, notices of channels, dots and the feed."""
        return self._read(f"/v1/poll/{id_part(user, 'user')}", read, {"channels": ",".join(names_of(channels, "channels")), "dots": ",".join(names_of(dots, "dots"))})

    def poll_many(self, users: Sequence[Id], *, channels: Sequence[str] = (), dots: Sequence[str] = (), read: Read = DEFAULT) -> Any:
        """Does a poll for up to 100 users, and returns the results in the order of users."""
        body = {"users": ids_of(users, "users"), **_given(channels=names_of(channels, "channels") or None, dots=names_of(dots, "dots") or None)}
        return self._read("/v1/poll", read, body=body, shape=operator.itemgetter("results"))

    def publish_notice(self, channel: str, *, key: Optional[str] = None) -> Any:
        """Publishes a notice to all users of a channel. The caller stores its text, under channel and seq."""
        return self._write("POST", f"/v1/notices/{part(channel)}", {}, key)

    def retract_notice(self, channel: str, seq: int, *, key: Optional[str] = None) -> Any:
        """Retracts a notice. It no longer counts as unread for any user."""
        return self._write("DELETE", f"/v1/notices/{part(channel)}/{int_of(seq, 'seq')}", None, key)

    def notices(self, channel: str, user: Id, *, since: Optional[int] = None, read: Read = DEFAULT) -> Any:
        """Counts a user's unread notices of a channel. If the user has no position in the channel yet, the count starts after notice number since."""
        return self._read(f"/v1/notices/{part(channel)}/users/{id_part(user, 'user')}", read, {"since": since})

    def read_notices(self, channel: str, user: Id, up_to: Optional[int] = None, *, key: Optional[str] = None) -> Any:
        """Marks all notices as read, or those up to a number. The user's position never moves back."""
        return self._write("POST", f"/v1/notices/{part(channel)}/users/{id_part(user, 'user')}/read", _given(up_to=up_to), key)

    def fire_dot(self, name: str, *, key: Optional[str] = None) -> Any:
        """Shows a red dot to every user."""
        return self._write("POST", f"/v1/dots/{part(name)}/fire", {}, key)

    def dot(self, name: str, user: Id, *, read: Read = DEFAULT) -> Any:
        """Reports whether a user sees a dot."""
        return self._read(f"/v1/dots/{part(name)}/users/{id_part(user, 'user')}", read, shape=operator.itemgetter("show"))

    def clear_dot(self, name: str, user: Id, *, key: Optional[str] = None) -> Any:
        """Hides a dot from a user until it is fired again."""
        return self._write("POST", f"/v1/dots/{part(name)}/users/{id_part(user, 'user')}/clear", {}, key)

    # Feeds and timelines.

    def reset_feed(self, user: Id, followees: Optional[Sequence[Id]] = None, *, key: Optional[str] = None) -> Any:
        """Replaces the followees of a user. Without followees, it marks the posts of all present followees as seen."""
        return self._feed(user, "reset", followees, key)

    def reset_feed_up_to(self, user: Id, post: Id, *, key: Optional[str] = None) -> Any:
        """Marks the posts of all followees as seen, up to the newest post that the user was shown."""
        return self._write("POST", f"/v1/feed/{id_part(user, 'user')}/reset", {"up_to": id_of(post, "post")}, key)

    def follow(self, user: Id, followees: Sequence[Id], *, key: Optional[str] = None) -> Any:
        """Adds followees to those of a user. Their earlier posts count as seen."""
        return self._feed(user, "follow", followees, key)

    def unfollow(self, user: Id, followees: Sequence[Id], *, key: Optional[str] = None) -> Any:
        """Removes followees from those of a user."""
        return self._feed(user, "unfollow", followees, key)

    def read_feed(self, user: Id, followees: Sequence[Id], *, key: Optional[str] = None) -> Any:
        """Marks the posts of some followees as seen."""
        return self._feed(user, "read", followees, key)

    def _feed(self, user: Id, verb: str, followees: Optional[Sequence[Id]], key: Optional[str]) -> Any:
        body = {} if followees is None else {"followees": ids_of(followees, "followees")}
        return self._write("POST", f"/v1/feed/{id_part(user, 'user')}/{verb}", body, key)

    def feed_unread(self, user: Id, *, detail: bool = False, read: Read = DEFAULT) -> Any:
        """Counts the posts of followees that a user has not seen."""
        return self._read(f"/v1/feed/{id_part(user, 'user')}/unread", read, {"detail": detail or None})

    def _followees_page(self, user: Id, *, cursor: Optional[str] = None, limit: int = 1000, read: Read = DEFAULT) -> Any:
        """Returns the followees of a user, by ascending id."""
        return self._read(f"/v1/feed/{id_part(user, 'user')}/followees", read, {"cursor": cursor, "limit": limit})

    def put_group(self, user: Id, name: str, followees: Sequence[Id], *, key: Optional[str] = None) -> Any:
        """Makes a group of some followees, or replaces the group of that name."""
        return self._write("PUT", f"/v1/feed/{id_part(user, 'user')}/groups/{part(name)}", {"followees": ids_of(followees, "followees")}, key)

    def drop_group(self, user: Id, name: str, *, key: Optional[str] = None) -> Any:
        """Deletes a group. The user still follows its followees."""
        return self._write("DELETE", f"/v1/feed/{id_part(user, 'user')}/groups/{part(name)}", None, key)

    def add_post(self, author: Id, post: Id, *, key: Optional[str] = None) -> Any:
        """Adds a post to an author's outbox, and 1 to the author's number of posts. If the outbox has the post already, nothing changes."""
        return self._write("POST", f"/v1/outbox/{id_part(author, 'author')}", {"id": id_of(post, "post")}, key)

    def remove_post(self, author: Id, post: Id, *, key: Optional[str] = None) -> Any:
        """Removes a post from an author's outbox. If the outbox had the post, the author's number of posts drops by 1."""
        return self._write("DELETE", f"/v1/outbox/{id_part(author, 'author')}/{id_part(post, 'post')}", None, key)

    def outbox(self, author: Id, *, cursor: Optional[str] = None, limit: Optional[int] = None, read: Read = DEFAULT) -> Any:
        """Returns a page of an author's posts, newest first."""
        return self._read(f"/v1/outbox/{id_part(author, 'author')}", read, {"cursor": cursor, "limit": limit})

    def timeline(self, user: Id, *, cursor: Optional[str] = None, limit: Optional[int] = None, group: str = "", counts: str = "", member: Sequence[str] = (), read: Read = DEFAULT) -> Any:
        """Returns a page of the posts of a user's followees, newest first.

        counts names the keyspace of the posts' counts. member names columns: each post reports whether its sets of these columns contain the user.
        """
        query = {"cursor": cursor, "limit": limit, "group": group, "counts": counts, "member": ",".join(names_of(member, "member"))}
        return self._read(f"/v1/timeline/{id_part(user, 'user')}", read, query)

    # Keyspaces.

    def keyspaces(self, *, read: Read = DEFAULT) -> Any:
        """Returns all keyspaces."""
        return self._read("/v1/keyspaces", read, shape=operator.itemgetter("keyspaces"))

    def create_keyspace(self, name: str, columns: Sequence[Any], **settings: Any) -> Any:
        """Makes a keyspace of counters. settings are those of POST /v1/keyspaces, such as shards."""
        return self._make(Call("POST", "/v1/keyspaces", body={"name": name, "columns": list_of(columns, "columns"), **settings}, write=True))


def any_call(method: str, path: str, query: Mapping[str, Any], body: Any, headers: Mapping[str, str]) -> Call:
    write = method != "GET"
    if write and not any(name.lower() in ("idempotency-key", "countd-producer") for name in headers):
        headers = {**headers, "Idempotency-Key": new_key()}
    return Call(method, path, query, body, headers, write)


def _one(answer: Any) -> Json:
    return {**answer["results"][0], "duplicate": answer["duplicate"], "token": answer["token"]}


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _ops(ops: Iterable[Mapping[str, Any]], form: Callable[[Mapping[str, Any], str], Json]) -> list[Json]:
    listed = list_of(ops, "ops")
    for i, op in enumerate(listed):
        if not isinstance(op, Mapping):
            raise ValueError(f"ops[{i}]: {op!r:.80} is not a dict")
    return [form(op, f"ops[{i}]") for i, op in enumerate(listed)]


# The optional fields of ops.
_OPTIONAL = ("floor",)


def _fields(op: Mapping[str, Any], at: str, **forms: Callable[[Any, str], Any]) -> Json:
    """Returns a copy of an op with each field converted by its form. It raises ValueError for a missing and for an unknown field."""
    for name in op:
        if name not in forms:
            raise ValueError(f"{at}.{name}: there is no such field; there are {', '.join(forms)}")
    for name in forms:
        if name not in op and name not in _OPTIONAL:
            raise ValueError(f"{at}.{name}: it is missing")
    return {name: form(op[name], f"{at}.{name}") for name, form in forms.items() if op.get(name) is not None or name not in _OPTIONAL}


def _bool_of(value: bool, field: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{field}: {value!r:.80} is not True or False")
    return value


def _name_of(value: str, field: str) -> str:
    return names_of([value], field)[0]


def _incr(op: Mapping[str, Any], at: str, **more: Callable[[Any, str], Any]) -> Json:
    return _fields(op, at, **more, id=id_of, add=ints_of, floor=int_of)


def _incr_user(op: Mapping[str, Any], at: str) -> Json:
    return _fields(op, at, user=id_of, add=ints_of, floor=int_of)


def _set(op: Mapping[str, Any], at: str, **more: Callable[[Any, str], Any]) -> Json:
    return _fields(op, at, **more, id=id_of, set=ints_of)


def _member(op: Mapping[str, Any], at: str, **more: Callable[[Any, str], Any]) -> Json:
    return _fields(op, at, **more, id=id_of, member=id_of, set=_bool_of)


def _any(op: Mapping[str, Any], at: str) -> Json:
    if "user" in op:
        return _incr_user(op, at)
    if "member" in op:
        return _member(op, at, keyspace=_name_of, column=_name_of)
    return (_incr if "add" in op else _set)(op, at, keyspace=_name_of)
