// The client of countd's HTTP API. All tries of a write have the same Idempotency-Key, so the write counts once. A
// promise is fulfilled only with a complete answer of status 2xx.

import type {components, Int64} from './api.js';
import {callNames, Core, keyed, readNames, writeNames, type Call, type CallOptions, type Config, type ReadOptions, type WriteOptions} from './core.js';
import {checkNames, checkObject, idOf, idPart, intOf, intsOf, listOf, nameOf, part, shown, type Id, type Int, type Ints} from './json.js';
import {Writer, type WriterConfig} from './writer.js';

export {CountdError, type Code} from './errors.js';
export {newKey, type Call, type CallOptions, type Config, type ReadOptions, type WriteOptions} from './core.js';
export {Writer, type Failure, type WriterConfig} from './writer.js';
export type {Id, Int, Ints} from './json.js';

/** T in which each whole number has the type N. */
export type Whole<T, N> = T extends Int64 ? N : T extends object ? {[K in keyof T]: Whole<T[K], N>} : T;
/** An answer of the API. N is number, or number | bigint if the client was opened with bigints. */
export type Answer<K extends keyof components['schemas'], N = number> = Whole<components['schemas'][K], N>;

/** A change of one row. Ops on one row apply in their order. */
export interface IncrOp {
  id: Id;
  add: Ints;
  /** No sum drops below the floor. A column that is already below it does not change. */
  floor?: Int;
}

export interface SetOp {
  id: Id;
  set: Ints;
}

export interface MemberOp {
  id: Id;
  member: Id;
  /** true adds the member, false removes it. */
  set: boolean;
}

/** An op of {@link Countd.ops}: on a row, on a user's unread numbers, or on a set of members. */
export type AnyOp =
  | {keyspace: string; id: Id; add: Ints; floor?: Int}
  | {keyspace: string; id: Id; set: Ints}
  | {keyspace: string; column: string; id: Id; member: Id; set: boolean}
  | {user: Id; add: Ints; floor?: Int};

/** An entry of the results of a write: the row after its op, or why only this op was refused. */
export type OpResult<N = number> = {id: string; counts: Record<string, N>; added?: Record<string, N>; error?: undefined} | {id: string; error: Answer<'Fault'>; counts?: undefined};

export interface Results<R> {
  results: R[];
  /** How many ops were refused. */
  failed?: number;
  /** In the answer to a repeat: ids of ops for which the server no longer knows whether it applied or refused them. */
  unknown?: string[];
  duplicate: boolean;
  /** A read that sends this token sees the write. */
  token: string;
}

/** A client. It is safe for concurrent calls, and needs no close. */
export class Countd<N extends number | bigint = number> {
  readonly #core: Core;

  private constructor(config: Config) {
    this.#core = new Core(config);
  }

  /** Checks the configuration. It does not connect. */
  static open(config: Config & {bigints: true}): Countd<number | bigint>;
  static open(config: Config & {bigints?: false}): Countd<number>;
  static open(config: Config): Countd<number | bigint> {
    return new Countd(config);
  }

  /** Makes any call of the API. The client may send a call again, so it adds an Idempotency-Key, unless the call is a GET or has an identity in Call.headers. */
  request(call: Call, options: CallOptions = {}): Promise<unknown> {
    checkNames(options, callNames, 'options');
    const write = call.method !== 'GET';
    const identified = Object.keys(call.headers ?? {}).some(name => /^(idempotency-key|countd-producer)$/i.test(name));
    return this.#core.call({...call, write, headers: {...call.headers, ...(write && !identified ? keyed() : {})}}, options);
  }

  // names are the options that only this call has.
  async #read<T>(path: string, o: ReadOptions = {}, names: readonly string[] = [], query: Call['query'] = {}, body?: unknown): Promise<T> {
    checkNames(o, [...names, ...readNames], 'options');
    const fresh = {...query, consistency: o.consistency, max_staleness: o.maxStalenessMs === undefined ? undefined : `${o.maxStalenessMs}ms`};
    const headers: Record<string, string> = o.token === undefined ? {} : {'Countd-Token': o.token};
    return this.#core.call({method: body === undefined ? 'GET' : 'POST', path, query: fresh, body, headers}, o) as Promise<T>;
  }

  #write<T>(method: Call['method'], path: string, body?: unknown, o: WriteOptions = {}, names: readonly string[] = []): Promise<T> {
    checkNames(o, [...names, ...writeNames], 'options');
    return this.#core.call({method, path, body, headers: keyed(o.key), write: true}, o) as Promise<T>;
  }

  async *#pages<P extends {cursor?: string}, T>(read: (cursor: string | undefined) => Promise<P>, items: (page: P) => Iterable<T>): AsyncGenerator<T, void, undefined> {
    for (let cursor: string | undefined; ; ) {
      const page = await read(cursor);
      yield* items(page);
      if ((cursor = page.cursor) === undefined) return;
    }
  }

  // Counters.

  /** Reads a row. A row that was never written has zeros. */
  get(keyspace: string, id: Id, o?: ReadOptions): Promise<Answer<'Row', N>> {
    return this.#read(`/v1/counters/${part(keyspace)}/${idPart(id, 'id')}`, o);
  }

  /** Reads up to 1,000 rows, in the order of ids. With a member, each row also names its sets that contain the member. */
  async getMany(keyspace: string, ids: readonly Id[], o: ReadOptions & {columns?: readonly string[]; member?: Id} = {}): Promise<Answer<'Rows', N>['results']> {
    const body = {ids: listOf(ids, 'ids', idOf), columns: namesOf(o.columns, 'columns'), member: o.member === undefined ? undefined : idOf(o.member, 'member')};
    return (await this.#read<Answer<'Rows', N>>(`/v1/counters/${part(keyspace)}/get`, o, ['columns', 'member'], {}, body)).results;
  }

  /** Adds to columns of one row, and returns the new row. A sum beyond 64 bits is refused: `overflow`. */
  async incr(keyspace: string, id: Id, add: Ints, o: WriteOptions & {floor?: Int} = {}): Promise<Answer<'RowWritten', N> & {added?: Record<string, N>}> {
    const op = {id: idOf(id, 'id'), add: intsOf(add, 'add'), floor: floorOf(o.floor, 'floor')};
    const {results, duplicate, token} = await this.#write<Results<OpResult<N>>>('POST', `/v1/counters/${part(keyspace)}/incr`, {ops: [op]}, o, ['floor']);
    return {...results[0], duplicate, token} as Answer<'RowWritten', N>;
  }

  /** Adds to up to 10,000 rows. If a sum exceeds 64 bits, only its op is refused. */
  incrMany(keyspace: string, ops: readonly IncrOp[], o?: WriteOptions): Promise<Results<OpResult<N>>> {
    return this.#write('POST', `/v1/counters/${part(keyspace)}/incr`, {ops: opsOf(ops, incrForm)}, o);
  }

  /** Sets columns of one row. The other columns keep their counts. */
  set(keyspace: string, id: Id, set: Ints, o?: WriteOptions): Promise<Answer<'RowWritten', N>> {
    return this.#write('PUT', `/v1/counters/${part(keyspace)}/${idPart(id, 'id')}`, {set: intsOf(set, 'set')}, o);
  }

  /** Sets columns of up to 10,000 rows. */
  setMany(keyspace: string, ops: readonly SetOp[], o?: WriteOptions): Promise<Results<OpResult<N>>> {
    return this.#write('POST', `/v1/counters/${part(keyspace)}/set`, {ops: opsOf(ops, setForm)}, o);
  }

  /** Sets every column of a row to zero. */
  delete(keyspace: string, id: Id, o?: WriteOptions): Promise<Answer<'RowWritten', N>> {
    return this.#write('DELETE', `/v1/counters/${part(keyspace)}/${idPart(id, 'id')}`, undefined, o);
  }

  /** Reads all rows that have a count, by ascending id, a page at a time. If rows are written meanwhile, it may return them as of different moments. */
  scan(keyspace: string, o: ReadOptions & {columns?: readonly string[]; pageRows?: number} = {}): AsyncGenerator<Answer<'Row', N>, void, undefined> {
    return this.#pages(
      cursor => this.#read<Answer<'Page', N>>(`/v1/counters/${part(keyspace)}/scan`, o, ['columns', 'pageRows'], {}, {cursor, columns: namesOf(o.columns, 'columns'), limit: o.pageRows}),
      page => page.results,
    );
  }

  /** Returns the rows that gained most of a column in a window, largest first. The true gain is within `error` of `gained`; no other row gained more than `others_at_most`. */
  hot(keyspace: string, column: string, o: ReadOptions & {window?: '1m' | '1h' | '24h'; limit?: number} = {}): Promise<Answer<'Hot', N>> {
    return this.#read(`/v1/hot/${part(keyspace)}/${part(column)}`, o, ['window', 'limit'], {window: o.window, limit: o.limit});
  }

  /** Returns the rows with the exact largest counts of a column. The first call for a column reads all rows. Meanwhile, calls may fail with `not_ready`. */
  async top(keyspace: string, column: string, o: ReadOptions & {limit?: number} = {}): Promise<Answer<'Top', N>['results']> {
    return (await this.#read<Answer<'Top', N>>(`/v1/top/${part(keyspace)}/${part(column)}`, o, ['limit'], {limit: o.limit})).results;
  }

  /** Writes to rows of any keyspaces under one key: up to 10,000 ops. The ops of one shard are applied together. */
  ops(ops: readonly AnyOp[], o?: WriteOptions): Promise<Results<Answer<'OpAfter', N>>> {
    return this.#write('POST', '/v1/ops', {ops: opsOf(ops, anyForm)}, o);
  }

  /** Merges increments into batches, each counted once. */
  writer(config?: WriterConfig): Writer {
    return new Writer(this.#core, config);
  }

  // Members: who did it.

  /** Adds a member to the set of a row. If the set did not contain the member, the row's count grows by 1. */
  addMember(keyspace: string, column: string, id: Id, member: Id, o?: WriteOptions): Promise<MemberWritten<N>> {
    return this.#changeMember(keyspace, column, {id, member, set: true}, o);
  }

  /** Removes a member from the set of a row. If the set contained the member, the row's count drops by 1. */
  removeMember(keyspace: string, column: string, id: Id, member: Id, o?: WriteOptions): Promise<MemberWritten<N>> {
    return this.#changeMember(keyspace, column, {id, member, set: false}, o);
  }

  async #changeMember(keyspace: string, column: string, op: MemberOp, o?: WriteOptions): Promise<MemberWritten<N>> {
    const {results, duplicate, token} = await this.changeMembers(keyspace, column, [op], o);
    return {...results[0], duplicate, token} as MemberWritten<N>;
  }

  /** Adds and removes up to 10,000 members, in the order of ops. */
  changeMembers(keyspace: string, column: string, ops: readonly MemberOp[], o?: WriteOptions): Promise<Results<MemberResult<N>>> {
    return this.#write('POST', `/v1/members/${part(keyspace)}/${part(column)}`, {ops: opsOf(ops, memberForm)}, o);
  }

  /** Reports, for each of up to 1,000 rows, whether its set contains the member. Results are in the order of ids. */
  async hasMember(keyspace: string, column: string, member: Id, ids: readonly Id[], o?: ReadOptions): Promise<boolean[]> {
    const body = {member: idOf(member, 'member'), ids: listOf(ids, 'ids', idOf)};
    return (await this.#read<{results: boolean[]}>(`/v1/members/${part(keyspace)}/${part(column)}/check`, o, [], {}, body)).results;
  }

  /** Returns a page of the members of a row, newest first. */
  members(keyspace: string, column: string, id: Id, o: ReadOptions & PageOptions = {}): Promise<Answer<'MembersPage', N>> {
    return this.#read(`/v1/members/${part(keyspace)}/${part(column)}/${idPart(id, 'id')}`, o, pageNames, {limit: o.limit, cursor: o.cursor});
  }

  /** Returns a page of the rows whose sets contain a member, newest first. */
  rowsOf(keyspace: string, column: string, member: Id, o: ReadOptions & PageOptions = {}): Promise<Answer<'RowsOfMember', N>> {
    return this.#read(`/v1/members/${part(keyspace)}/${part(column)}/of/${idPart(member, 'member')}`, o, pageNames, {limit: o.limit, cursor: o.cursor});
  }

  // Unread numbers.

  /** Reads a user's own unread numbers. */
  unread(user: Id, o?: ReadOptions): Promise<Answer<'UserRow', N>> {
    return this.#read(`/v1/unread/${idPart(user, 'user')}`, o);
  }

  /** Adds to unread numbers of up to 10,000 users. No number drops below 0. */
  incrUnread(ops: readonly {user: Id; add: Ints; floor?: Int}[], o?: WriteOptions): Promise<Results<{user: string; counts?: Record<string, N>; error?: Answer<'Fault'>}>> {
    return this.#write('POST', '/v1/unread/incr', {ops: opsOf(ops, unreadForm)}, o);
  }

  /** Sets columns of a user to zero, or subtracts the numbers that the user was shown (seen), so that later increments stay. */
  resetUnread(user: Id, what: {columns: readonly string[]} | {seen: Ints}, o?: WriteOptions): Promise<Answer<'UserReset', N>> {
    return this.#write('POST', `/v1/unread/${idPart(user, 'user')}/reset`, formed(what, '', {columns: namesOf, seen: (seen, field) => (seen === undefined ? undefined : intsOf(seen, field))}, 'option'), o);
  }

  /** Returns all unread numbers of a user: counts, notices of channels, dots and the feed. */
  poll(user: Id, what: Names = {}, o?: ReadOptions): Promise<Answer<'Poll', N>> {
    const {channels, dots} = polled(what);
    return this.#read(`/v1/poll/${idPart(user, 'user')}`, o, [], {channels: channels?.join(','), dots: dots?.join(',')});
  }

  /** Does a poll for up to 100 users, and returns the results in the order of users. */
  async pollMany(users: readonly Id[], what: Names = {}, o?: ReadOptions): Promise<Answer<'Polls', N>['results']> {
    const body = {users: listOf(users, 'users', idOf), ...polled(what)};
    return (await this.#read<Answer<'Polls', N>>('/v1/poll', o, [], {}, body)).results;
  }

  /** Publishes a notice to all users of a channel. The caller stores its text, under channel and seq. */
  publishNotice(channel: string, o?: WriteOptions): Promise<Answer<'Published', N>> {
    return this.#write('POST', `/v1/notices/${part(channel)}`, {}, o);
  }

  /** Retracts a notice. It no longer counts as unread for any user. */
  retractNotice(channel: string, seq: Int, o?: WriteOptions): Promise<Answer<'Published', N>> {
    return this.#write('DELETE', `/v1/notices/${part(channel)}/${intOf(seq, 'seq')}`, undefined, o);
  }

  /** Counts a user's unread notices of a channel. If the user has no position in the channel yet, the count starts after notice number since. */
  notices(channel: string, user: Id, o: ReadOptions & {since?: Int} = {}): Promise<Answer<'Notices', N>> {
    return this.#read(`/v1/notices/${part(channel)}/users/${idPart(user, 'user')}`, o, ['since'], {since: o.since?.toString()});
  }

  /** Marks all notices as read, or those up to a number. The user's position never moves back. */
  readNotices(channel: string, user: Id, upTo?: Int, o?: WriteOptions): Promise<Answer<'NoticesWritten', N>> {
    return this.#write('POST', `/v1/notices/${part(channel)}/users/${idPart(user, 'user')}/read`, upTo === undefined ? {} : {up_to: intOf(upTo, 'upTo')}, o);
  }

  /** Shows a red dot to every user. */
  fireDot(name: string, o?: WriteOptions): Promise<Answer<'Fired', N>> {
    return this.#write('POST', `/v1/dots/${part(name)}/fire`, {}, o);
  }

  /** Reports whether a user sees a dot. */
  async dot(name: string, user: Id, o?: ReadOptions): Promise<boolean> {
    return (await this.#read<{show: boolean}>(`/v1/dots/${part(name)}/users/${idPart(user, 'user')}`, o)).show;
  }

  /** Hides a dot from a user until it is fired again. */
  clearDot(name: string, user: Id, o?: WriteOptions): Promise<Answer<'ShowsWritten', N>> {
    return this.#write('POST', `/v1/dots/${part(name)}/users/${idPart(user, 'user')}/clear`, {}, o);
  }

  // Feeds and timelines.

  /** Replaces the followees of a user. Without followees, it marks the posts of all present followees as seen. */
  resetFeed(user: Id, followees?: readonly Id[], o?: WriteOptions): Promise<Answer<'FeedWritten', N>> {
    return this.#changeFeed(user, 'reset', followees, o);
  }

  /** Marks the posts of all followees as seen, up to the newest post that the user was shown. */
  resetFeedUpTo(user: Id, post: Id, o?: WriteOptions): Promise<Answer<'FeedWritten', N>> {
    return this.#write('POST', `/v1/feed/${idPart(user, 'user')}/reset`, {up_to: idOf(post, 'post')}, o);
  }

  /** Adds followees to those of a user. Their earlier posts count as seen. */
  follow(user: Id, followees: readonly Id[], o?: WriteOptions): Promise<Answer<'FeedWritten', N>> {
    return this.#changeFeed(user, 'follow', followees, o);
  }

  /** Removes followees from those of a user. */
  unfollow(user: Id, followees: readonly Id[], o?: WriteOptions): Promise<Answer<'FeedWritten', N>> {
    return this.#changeFeed(user, 'unfollow', followees, o);
  }

  /** Marks the posts of some followees as seen. */
  readFeed(user: Id, followees: readonly Id[], o?: WriteOptions): Promise<Answer<'FeedWritten', N>> {
    return this.#changeFeed(user, 'read', followees, o);
  }

  #changeFeed(user: Id, verb: string, followees?: readonly Id[], o?: WriteOptions): Promise<Answer<'FeedWritten', N>> {
    return this.#write('POST', `/v1/feed/${idPart(user, 'user')}/${verb}`, followees === undefined ? {} : followeesOf(followees), o);
  }

  /** Counts the posts of followees that a user has not seen. */
  feedUnread(user: Id, o: ReadOptions & {detail?: boolean} = {}): Promise<Answer<'FeedUnread', N>> {
    return this.#read(`/v1/feed/${idPart(user, 'user')}/unread`, o, ['detail'], {detail: o.detail});
  }

  /** Returns the followees of a user, by ascending id. */
  followees(user: Id, o: ReadOptions = {}): AsyncGenerator<string, void, undefined> {
    return this.#pages(
      cursor => this.#read<Answer<'FolloweesPage', N>>(`/v1/feed/${idPart(user, 'user')}/followees`, o, [], {cursor}),
      page => page.followees,
    );
  }

  /** Makes a group of some followees, or replaces the group of that name. */
  putGroup(user: Id, name: string, followees: readonly Id[], o?: WriteOptions): Promise<Answer<'GroupWritten', N>> {
    return this.#write('PUT', `/v1/feed/${idPart(user, 'user')}/groups/${part(name)}`, followeesOf(followees), o);
  }

  /** Deletes a group. The user still follows its followees. */
  dropGroup(user: Id, name: string, o?: WriteOptions): Promise<Answer<'GroupWritten', N>> {
    return this.#write('DELETE', `/v1/feed/${idPart(user, 'user')}/groups/${part(name)}`, undefined, o);
  }

  /** Adds a post to an author's outbox, and 1 to the author's number of posts. If the outbox has the post already, nothing changes. */
  addPost(author: Id, post: Id, o?: WriteOptions): Promise<Answer<'PostWritten', N>> {
    return this.#write('POST', `/v1/outbox/${idPart(author, 'author')}`, {id: idOf(post, 'post')}, o);
  }

  /** Removes a post from an author's outbox. If the outbox had the post, the author's number of posts drops by 1. */
  removePost(author: Id, post: Id, o?: WriteOptions): Promise<Answer<'PostWritten', N>> {
    return this.#write('DELETE', `/v1/outbox/${idPart(author, 'author')}/${idPart(post, 'post')}`, undefined, o);
  }

  /** Returns a page of an author's posts, newest first. */
  outbox(author: Id, o: ReadOptions & PageOptions = {}): Promise<Answer<'OutboxPage', N>> {
    return this.#read(`/v1/outbox/${idPart(author, 'author')}`, o, pageNames, {limit: o.limit, cursor: o.cursor});
  }

  /**
   * Returns a page of the posts of a user's followees, newest first. counts names the keyspace of the posts' counts.
   * member names columns: each post reports whether its sets of these columns contain the user.
   */
  timeline(user: Id, o: ReadOptions & PageOptions & {group?: string; counts?: string; member?: readonly string[]} = {}): Promise<Answer<'Timeline', N>> {
    const query = {limit: o.limit, cursor: o.cursor, group: o.group, counts: o.counts, member: namesOf(o.member, 'member')?.join(',')};
    return this.#read(`/v1/timeline/${idPart(user, 'user')}`, o, [...pageNames, 'group', 'counts', 'member'], query);
  }

  // Keyspaces.

  /** Returns all keyspaces. */
  async keyspaces(o?: ReadOptions): Promise<Answer<'Keyspace', N>[]> {
    return (await this.#read<Answer<'Keyspaces', N>>('/v1/keyspaces', o)).keyspaces;
  }

  /** Makes a keyspace of counters. */
  createKeyspace(keyspace: Whole<components['schemas']['NewKeyspace'], Int>, o: CallOptions = {}): Promise<Answer<'Keyspace', N>> {
    checkNames(o, callNames, 'options');
    return this.#core.call({method: 'POST', path: '/v1/keyspaces', body: keyspace, write: true}, o) as Promise<Answer<'Keyspace', N>>;
  }
}

/** The channels and dots of a poll. */
export interface Names {
  channels?: readonly string[];
  dots?: readonly string[];
}

export interface PageOptions {
  limit?: number;
  /** The cursor that the previous page returned. */
  cursor?: string;
}

const pageNames: readonly (keyof PageOptions)[] = ['limit', 'cursor'];

export type MemberResult<N = number> = {id: string; member: string; changed: boolean; count: N; error?: undefined} | {id: string; member: string; error: Answer<'Fault'>};
export type MemberWritten<N = number> = {id: string; member: string; changed: boolean; count: N; duplicate: boolean; token: string};

function followeesOf(followees: readonly Id[]): {followees: string[]} {
  return {followees: listOf(followees, 'followees', idOf)};
}

function namesOf(names: readonly string[] | undefined, field: string): string[] | undefined {
  return names === undefined ? undefined : listOf(names, field, nameOf);
}

function polled(what: Names): {channels?: string[]; dots?: string[]} {
  return formed(what, '', {channels: namesOf, dots: namesOf}, 'option');
}

type Forms = Readonly<Record<string, (value: never, field: string) => unknown>>;

/** Returns a copy of an op, or of a part of a request, with each field converted by its form. It throws a TypeError for an unknown field. */
function formed(op: object, prefix: string, forms: Forms, kind = 'field'): object {
  checkNames(op, Object.keys(forms), prefix.slice(0, -1) || kind, prefix, kind);
  return Object.fromEntries(Object.entries(forms).map(([name, form]) => [name, form((op as Record<string, never>)[name]!, prefix + name)]));
}

function floorOf(floor: Int | undefined, field: string): Int | undefined {
  return floor === undefined ? undefined : intOf(floor, field);
}

function boolOf(value: boolean, field: string): boolean {
  if (typeof value !== 'boolean') throw new TypeError(`${field}: ${shown(value)} is not true or false`);
  return value;
}

const incrForm: Forms = {id: idOf, add: intsOf, floor: floorOf};
const setForm: Forms = {id: idOf, set: intsOf};
const memberForm: Forms = {id: idOf, member: idOf, set: boolOf};
const unreadForm: Forms = {user: idOf, add: intsOf, floor: floorOf};

function anyForm(op: AnyOp): Forms {
  if ('user' in op) return unreadForm;
  if ('member' in op) return {keyspace: nameOf, column: nameOf, ...memberForm};
  return {keyspace: nameOf, ...('add' in op ? incrForm : setForm)};
}

function opsOf<T extends object>(ops: readonly T[], forms: Forms | ((op: T) => Forms)): object[] {
  return listOf(ops, 'ops', (op, at) => {
    checkObject(op, at);
    return formed(op, `${at}.`, typeof forms === 'function' ? forms(op) : forms);
  });
}
