import assert from 'node:assert/strict';
import {createServer} from 'node:http';
import {createRequire} from 'node:module';
import {test} from 'node:test';
import {Countd, CountdError, newKey} from 'countd';

// A fake fetch. It returns the answers of a list in turn, repeats the last one, and records the requests.
function server(...answers) {
  const asked = [];
  const fetch = async (url, init) => {
    asked.push({url, ...init});
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    if (answer instanceof Error) throw answer;
    const [status, body, headers = {}] = answer;
    return new Response(typeof body === 'string' ? body : JSON.stringify(body), {status, headers});
  };
  return {asked, open: config => Countd.open({addrs: ['http://a:1', 'b'], fetch, ...config})};
}

const row = (like = 1) => ({results: [{id: '1', counts: {like}}], duplicate: false, token: 't'});
const busy = [503, {error: {code: 'no_leader', message: 'no leader'}}];
const failure = async promise => promise.then(() => assert.fail('it succeeded'), e => (assert(e instanceof CountdError, e.stack), e));

test('a write has one key over all its tries, and goes to the next address', async () => {
  const s = server(new TypeError('fetch failed'), busy, [429, {error: {code: 'overloaded', message: 'busy'}}], [200, row()]);
  const waits = [];
  const got = await s.open({onRetry: (e, ms) => waits.push([e.code, ms])}).incr('posts', 1, {like: 1});
  assert.deepEqual(got, {id: '1', counts: {like: 1}, duplicate: false, token: 't'});
  assert.deepEqual(s.asked.map(r => r.url), ['http://a:1', 'http://b:7400', 'http://a:1', 'http://a:1'].map(base => `${base}/v1/counters/posts/incr`));
  assert.equal(new Set(s.asked.map(r => r.headers['Idempotency-Key'])).size, 1);
  assert.deepEqual(waits.map(([code]) => code), ['no_leader', 'overloaded']);
});

test('Retry-After is waited for, and the last try comes at the end of retryForMs', async () => {
  const s = server([503, {error: {code: 'draining', message: 'later'}}, {'Retry-After': '1'}], busy, [200, row()]);
  const began = Date.now();
  await s.open({addrs: ['a']}).incr('posts', 1, {like: 1});
  assert(Date.now() - began >= 1000);
  const never = server([503, {error: {code: 'draining', message: 'later'}}, {'Retry-After': '7'}]);
  const e = await failure(never.open({retryForMs: 60}).incr('posts', 1, {like: 1}));
  assert.deepEqual([e.status, e.code, e.retryAfterMs, e.maybeApplied, never.asked.length], [503, 'draining', 7000, false, 4]);
});

test('a write whose try got no answer may have been applied, whatever comes after', async () => {
  const s = server(new TypeError('fetch failed'), [400, {error: {code: 'invalid_argument', message: 'no', field: 'ops[0].add.x'}}]);
  const e = await failure(s.open().incr('posts', 1, {x: 1}));
  assert.deepEqual([e.code, e.field, e.maybeApplied], ['invalid_argument', 'ops[0].add.x', true]);
  const sure = server([400, {error: {code: 'invalid_argument', message: 'no', field: 'ops[0].add.x'}}]);
  assert.equal((await failure(sure.open().incr('posts', 1, {x: 1}))).maybeApplied, false);
  const sum = server(new TypeError('fetch failed'), [409, {error: {code: 'overflow', message: 'no'}}]);
  assert.equal((await failure(sum.open().incr('posts', 1, {x: 1}))).maybeApplied, false);
  const other = server(new TypeError('fetch failed'), [409, {error: {code: 'a_new_refusal', message: 'no'}}]);
  assert.equal((await failure(other.open().incr('posts', 1, {x: 1}))).maybeApplied, false);
  for (const conflict of ['{"error":{"code":"idempotency_conflict","message":"no"}}', '{"error":{"code":"refused","message":"no"}}', 'a proxy']) {
    const s = server(new TypeError('fetch failed'), [409, conflict]);
    assert.equal((await failure(s.open().incr('posts', 1, {x: 1}))).maybeApplied, true);
  }
  const proxy = server([503, 'try later']);
  assert.equal((await failure(proxy.open({retryForMs: 0}).incr('posts', 1, {x: 1}))).maybeApplied, true);
});

test('numbers keep their value or are refused', async () => {
  const big = '{"id":"9007199254740993","counts":{"like":9223372036854775807,"view":-9007199254740993,"x":7}}';
  const s = server([200, big]);
  assert.deepEqual(await s.open({bigints: true}).get('posts', 9007199254740993n), {id: '9007199254740993', counts: {like: 2n ** 63n - 1n, view: -9007199254740993n, x: 7}});
  assert.match((await failure(s.open().get('posts', '1'))).message, /9223372036854775807.*bigints: true/);
  const write = server([200, '{"results":[{"id":"1","counts":{"like":9007199254740992}}],"duplicate":false,"token":"t"}']);
  assert.equal((await failure(write.open().incr('posts', 1, {like: 2n ** 53n - 2n}))).maybeApplied, true);
  assert.equal(write.asked[0].body, '{"ops":[{"id":"1","add":{"like":9007199254740990}}]}');
  const sent = write.asked.length;
  for (const call of [
    c => c.get('posts', 2 ** 53), c => c.get('posts', -1), c => c.get('posts', ''), c => c.get('posts', 2n ** 64n), c => c.get('posts', 1.5),
    c => c.incr('posts', 1, {like: 2 ** 53}), c => c.incr('posts', 1, {like: 2n ** 63n}), c => c.incr('posts', 1, {like: 0.5}), c => c.incr('posts', 1, {}),
    c => c.getMany('posts', [1, 2 ** 60]), c => c.addMember('posts', 'like', 1, 2 ** 60),
  ]) {
    await assert.rejects(async () => call(write.open()), RangeError);
  }
  assert.equal(write.asked.length, sent);
});

test('a wrong argument is refused by its name before anything is sent', async () => {
  const s = server([200, {results: []}]);
  const c = s.open();
  for (const [call, message] of [
    [() => c.getMany('posts', 1), 'ids: 1 is not an array'],
    [() => c.getMany('posts', '23'), 'ids: "23" is not an array'],
    [() => c.getMany('posts', undefined), 'ids: undefined is not an array'],
    [() => c.getMany('posts', [1], {columns: 'like'}), 'columns: "like" is not an array'],
    [() => c.getMany('posts', [1], {columns: [7]}), 'columns[0]: 7 is not a name'],
    [() => c.getMany('posts', [1], {column: ['like']}), 'column: there is no such option; there are columns, member, consistency, maxStalenessMs, token, signal, timeoutMs, retryForMs'],
    [() => c.get('posts', 1, {consistencyy: 'stale'}), 'consistencyy: there is no such option'],
    [() => c.get('posts', 1, 'stale'), 'options: "stale" is not an object'],
    [() => c.get(5, 1), '5 is not a name'],
    [() => c.get('posts'), 'id: undefined is not a string, a number or a bigint'],
    [() => c.get('posts', 1.5), 'id: 1.5 is not a whole number from 0'],
    [() => c.get('posts', 2 ** 53), 'id: 9007199254740992 is beyond 2^53 - 1'],
    [() => c.get('posts', [1]), 'id: [1] is not a string'],
    [() => c.get('posts', ''), 'id: "" is not a text of 1 to 128 bytes'],
    [() => c.get('posts', 'é'.repeat(65)), `id: "${'é'.repeat(65)}" is not a text of 1 to 128 bytes`],
    [() => c.get('posts', '\ud800'), 'id: "\\ud800" is not a text of 1 to 128 bytes'],
    [() => c.scan('posts', {columns: 'like'}).next(), 'columns: "like" is not an array'],
    [() => c.scan('posts', {pagerows: 2}).next(), 'pagerows: there is no such option'],
    [() => c.incr('posts', 77), 'add: undefined is not an object of numbers by column'],
    [() => c.incr('posts', 1, 1), 'add: 1 is not an object of numbers by column'],
    [() => c.incr('posts', 1, {like: '1'}), 'add.like: "1" is not a number or a bigint'],
    [() => c.incr('posts', 1, {like: 1}, {flor: 0}), 'flor: there is no such option'],
    [() => c.incr('posts', 1, {like: 1}, {retryForMS: 0}), 'retryForMS: there is no such option; there are floor, key, signal'],
    [() => c.incrMany('posts', {id: 1, add: {like: 1}}), 'ops: {"id":1,"add":{"like":1}} is not an array'],
    [() => c.incrMany('posts', [{id: 1}]), 'ops[0].add: undefined is not an object'],
    [() => c.incrMany('posts', [1]), 'ops[0]: 1 is not an object'],
    [() => c.incrMany('posts', [{id: 1, add: {like: 1}, flor: 0}]), 'ops[0].flor: there is no such field; there are id, add, floor'],
    [() => c.setMany('posts', [{id: 1, add: {like: 1}}]), 'ops[0].add: there is no such field; there are id, set'],
    [() => c.ops([{keyspace: 'posts', id: 1, add: {like: 1}, set: {like: 1}}]), 'ops[0].set: there is no such field; there are keyspace, id, add, floor'],
    [() => c.changeMembers('posts', 'like', [{id: 1, member: 2}]), 'ops[0].set: undefined is not true or false'],
    [() => c.hasMember('posts', 'like', 7, '12'), 'ids: "12" is not an array'],
    [() => c.incrUnread({user: 1, add: {dm: 1}}), 'ops: {"user":1,"add":{"dm":1}} is not an array'],
    [() => c.resetUnread(7, {seen: {like: 2 ** 60}}), 'seen.like: 1152921504606847000 is beyond'],
    [() => c.resetUnread(7, {columns: 'like'}), 'columns: "like" is not an array'],
    [() => c.poll(9, {channel: ['news']}), 'channel: there is no such option; there are channels, dots'],
    [() => c.poll(9, {channels: 'news'}), 'channels: "news" is not an array'],
    [() => c.poll(9, {dots: ['a,b']}), 'dots[0]: "a,b" is not a name'],
    [() => c.pollMany('78'), 'users: "78" is not an array'],
    [() => c.pollMany([7], {channels: 'news'}), 'channels: "news" is not an array'],
    [() => c.pollMany([7], {dot: ['news']}), 'dot: there is no such option'],
    [() => c.follow(9, '23'), 'followees: "23" is not an array'],
    [() => c.putGroup(9, 'stars', '23'), 'followees: "23" is not an array'],
    [() => c.timeline(9, {member: 'like'}), 'member: "like" is not an array'],
    [() => c.writer().add('posts', 1, 1), 'add: 1 is not an object'],
    [() => c.writer().add(5, 1, {view: 1}), '5 is not a name'],
    [() => c.writer({onfailure: () => {}}), 'onfailure: there is no such option'],
    [() => Countd.open(), 'config: undefined is not an object'],
    [() => Countd.open({}), 'addrs: undefined is not an array'],
    [() => Countd.open({addrs: 5}), 'addrs: 5 is not an array'],
    [() => Countd.open({addrs: []}), 'addrs: a client needs 1 to 16'],
    [() => Countd.open({addrs: ['']}), 'addrs[0]: "" is not of the form http://host:port'],
    [() => Countd.open({addrs: ['a:99999']}), 'addrs[0]: "a:99999" is not of the form'],
    [() => Countd.open({addrs: [7]}), 'addrs[0]: 7 is not of the form'],
    [() => Countd.open({addrs: ['a'], retryForMS: 5}), 'retryForMS: there is no such option; there are addrs, token, timeoutMs, retryForMs'],
    [() => Countd.open({addrs: ['a'], timeoutMs: '5'}), 'timeoutMs: "5" is not above 0 and at most 60000'],
  ]) {
    await assert.rejects(async () => call(), e => {
      assert(e instanceof RangeError || e instanceof TypeError, e);
      assert(e.message.startsWith(message), `${call}: ${e.message}`);
      return true;
    });
  }
  assert.equal(s.asked.length, 0);
  Countd.open({addrs: '127.0.0.1:7400'});
});

test('nothing was sent to a server that refuses connections', async () => {
  const cut = createServer(request => request.socket.destroy()).listen(0, '127.0.0.1');
  const closed = createServer().listen(0, '127.0.0.1');
  await new Promise(resolve => setTimeout(resolve, 20));
  const [cutPort, port] = [cut, closed].map(server => server.address().port);
  closed.close();
  const e = await failure(Countd.open({addrs: [`127.0.0.1:${port}`, `localhost:${port}`], retryForMs: 0}).incr('posts', 1, {like: 1}));
  assert.deepEqual([e.noAnswer, e.maybeApplied], [true, false]);
  const failures = [];
  const w = Countd.open({addrs: [`127.0.0.1:${port}`]}).writer({retryForMs: 0, onFailure: f => failures.push(f.error.maybeApplied)});
  await w.add('posts', 1, {view: 1});
  await failure(w.close());
  assert.deepEqual(failures, [false]);
  const sent = await failure(Countd.open({addrs: [`127.0.0.1:${cutPort}`, `127.0.0.1:${port}`], retryForMs: 0}).incr('posts', 1, {like: 1}));
  cut.close();
  assert.equal(sent.maybeApplied, true); // the first server may have counted
});

test('a digit string inside a string is left alone', async () => {
  const s = server([200, {id: '1', counts: {}, note: 'a "quoted\\" 12345678901234567890 text'}]);
  assert.equal((await s.open().get('posts', 1)).note, 'a "quoted\\" 12345678901234567890 text');
  const load = server([200, '{"load":0.30000000000000004,"far":1.2345678901234567e+20}']);
  assert.deepEqual(await load.open().get('posts', 1), {load: 0.30000000000000004, far: 1.2345678901234567e20});
});

test('a signal ends the call and its waits', async () => {
  const s = server(busy);
  const e = await failure(s.open().incr('posts', 1, {like: 1}, {signal: AbortSignal.timeout(120)}));
  assert.equal(e.code, 'no_leader');
  const gone = AbortSignal.abort();
  const hung = Countd.open({addrs: ['a'], fetch: async (_, {signal}) => signal.throwIfAborted()});
  assert.match((await failure(hung.get('posts', 1, {signal: gone}))).message, /aborted/);
});

test('a signal that ends during onRetry ends the wait', async () => {
  const controller = new AbortController();
  const s = server([503, {error: {code: 'draining', message: 'later'}}, {'Retry-After': '9'}]);
  const began = Date.now();
  await failure(s.open({onRetry: () => controller.abort()}).get('posts', 1, {signal: controller.signal}));
  assert(Date.now() - began < 5000);
});

test('any call but a GET has a key, and a header that cannot be sent is refused', async () => {
  const s = server(busy, [200, row()]);
  const db = s.open({addrs: ['a']});
  for (const call of [{method: 'POST'}, {method: 'GET'}, {method: 'POST', headers: {'idempotency-key': 'mine'}}]) await db.request({path: '/v1/ops', ...call});
  const keys = s.asked.map(r => new Headers(r.headers).get('Idempotency-Key'));
  assert.match(keys[0], /^[-0-9a-f]{36}$/);
  assert.deepEqual(keys, [keys[0], keys[0], null, 'mine']);
  for (const key of ['', ' a', 'ключ', 'a\nb', 'k'.repeat(129)]) await assert.rejects(async () => db.incr('posts', 1, {like: 1}, {key}), RangeError);
  assert.throws(() => s.open({token: 'a b'}), RangeError);
  assert.equal(s.asked.length, 4);
});

test('a token does not follow a redirect, which is an error at once', async () => {
  let others = 0;
  const other = createServer((_, response) => (others++, response.end('{}'))).listen(0, '127.0.0.1');
  const first = createServer((_, response) => response.writeHead(307, {Location: `http://127.0.0.1:${other.address().port}/`}).end()).listen(0, '127.0.0.1');
  await new Promise(resolve => setTimeout(resolve, 20));
  const e = await failure(Countd.open({addrs: [`http://127.0.0.1:${first.address().port}`], token: 'ctd_x'}).incr('posts', 1, {like: 1}));
  first.close(), other.close();
  assert.deepEqual([e.status, e.maybeApplied, others], [307, true, 0]);
});

test('reads send their freshness and token', async () => {
  const s = server([200, {id: '1', counts: {}}]);
  await s.open({token: 'ctd_x'}).get('a/b', 1, {consistency: 'bounded', maxStalenessMs: 250, token: 'tok', timeoutMs: 900});
  assert.equal(s.asked[0].url, 'http://a:1/v1/counters/a%2Fb/1?consistency=bounded&max_staleness=250ms');
  assert.deepEqual(s.asked[0].headers, {'Countd-Token': 'tok', 'Countd-Timeout': '900ms', Authorization: 'Bearer ctd_x'});
});

test('a scan follows cursors', async () => {
  const page = (id, cursor) => [200, {results: [{id, counts: {}}], next: null, cursor}];
  const s = server(page('1', 'c1'), page('2'));
  const ids = [];
  for await (const row of s.open().scan('posts', {pageRows: 1})) ids.push(row.id);
  assert.deepEqual(ids, ['1', '2']);
  assert.deepEqual(s.asked.map(r => r.body), ['{"limit":1}', '{"cursor":"c1","limit":1}']);
});

test('keys are UUIDs of version 7 in the order of time', async () => {
  const a = newKey();
  await new Promise(resolve => setTimeout(resolve, 3));
  const b = newKey();
  assert.match(a, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert(a.slice(0, 13) < b.slice(0, 13));
  assert(Math.abs(parseInt(a.slice(0, 8) + a.slice(9, 13), 16) - Date.now()) < 1000);
});

test('a writer merges what waits, keeps signs apart and numbers its batches', async () => {
  let release;
  const first = new Promise(resolve => (release = resolve));
  const bodies = [];
  const c = Countd.open({addrs: ['a'], fetch: async (_, {headers, body}) => {
    bodies.push([headers['Countd-Producer'], headers['Countd-Seq'], JSON.parse(body).ops]);
    if (bodies.length === 1) await first;
    return new Response('{"applied":1,"duplicate":false,"token":"t"}');
  }});
  const w = c.writer({waitingOps: 3});
  await w.add('posts', 1, {view: 1});
  await new Promise(resolve => setImmediate(resolve));
  for (const n of [1, 2, -1, -2, 5]) await w.add('posts', 1, {view: n});
  const fourth = w.add('posts', 2, {view: 1});
  assert.equal(await Promise.race([fourth.then(() => 'queued'), new Promise(resolve => setTimeout(resolve, 20, 'waits'))]), 'waits');
  release();
  await fourth;
  await w.close();
  await assert.rejects(w.add('posts', 1, {view: 1}), /closed/);
  const ops = bodies.map(b => b[2]);
  assert.deepEqual(ops, [[{id: '1', add: {view: 1}}], [{id: '1', add: {view: 3}}, {id: '1', add: {view: -3}}, {id: '1', add: {view: 5}}], [{id: '2', add: {view: 1}}]]);
  assert.deepEqual(bodies.map(b => b[1]), ['1', '2', '3']);
  assert.equal(new Set(bodies.map(b => b[0])).size, 1);
});

test('a writer fails the ops of a wrong column alone, and renews an expired producer', async () => {
  const wrong = [400, {error: {code: 'invalid_argument', message: 'no such column', field: 'ops[1].add.x'}}];
  const expired = [410, {error: {code: 'idempotency_expired', message: 'too old'}}];
  const s = server(wrong, expired, [200, {applied: 1, failed: 1, errors: [{id: '1', error: {code: 'overflow', message: 'no', field: 'ops[0].add.view'}}], duplicate: false, token: 't'}]);
  const failures = [];
  const w = s.open().writer({onFailure: f => failures.push([f.id, f.add, f.error.code, f.error.maybeApplied])});
  await Promise.all([w.add('posts', 1, {view: 1}), w.add('posts', 2, {x: 1})]);
  await assert.rejects(w.flush(), e => e.field === 'ops[1].add.x');
  await w.flush();
  assert.deepEqual(failures, [['2', {x: 1}, 'invalid_argument', false], ['1', {view: 1}, 'overflow', false]]);
  assert.notEqual(s.asked[1].headers['Countd-Producer'], s.asked[2].headers['Countd-Producer']);
});

test('callbacks that fail, odd columns and a page without TLS do not stop a writer', async t => {
  t.mock.method(console, 'error', () => {});
  t.mock.method(crypto, 'randomUUID', () => assert.fail('browsers have it with TLS only'));
  const wrong = () => { throw new Error('wrong'); };
  const column = [400, {error: {code: 'invalid_argument', message: 'no such column', field: 'ops[0].add.constructor'}}];
  const s = server(column, [200, {applied: 1, failed: 1, errors: [{id: '3', error: {code: 'overflow', message: 'no', field: 'ops[1].add.view'}}]}], [200, {applied: 1}]);
  const w = s.open().writer({onFailure: wrong});
  await Promise.all([w.add('posts', 1, {constructor: 1}), w.add('posts', 1, {constructor: 1}), w.add('posts', 2, {view: 1}), w.add('posts', 3, {view: 1})]);
  assert.equal((await failure(w.flush())).field, 'ops[0].add.constructor');
  await w.add('posts', 4, {view: 1});
  await w.close();
  assert.deepEqual(s.asked.map(r => JSON.parse(r.body).ops.map(op => op.id)), [['1', '2', '3'], ['2', '3'], ['4']]);
  const lost = server(new TypeError('fetch failed')).open({onRetry: wrong}).writer();
  await lost.add('posts', 1, {view: 1});
  assert.equal((await failure(lost.close())).maybeApplied, true);
});

test('CommonJS programs can load it', () => {
  assert.equal(typeof createRequire(import.meta.url)('countd').Countd.open, 'function');
});
