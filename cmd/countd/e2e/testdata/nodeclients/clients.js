// Counts through both clients of Redis for Node.js and says "ok", or what was
// wrong. Usage: node clients.js HOST PORT ID, with an id that nothing has counted.
'use strict';

const assert = require('node:assert/strict');
const { createClient } = require('redis');
const Redis = require('ioredis');

const [host, port, id] = process.argv.slice(2);
const key = (column) => `posts:${id}:${column}`;

async function nodeRedis(RESP) {
  const client = createClient({ socket: { host, port: Number(port) }, RESP, name: 'node' });
  await client.connect();
  assert.equal(await client.get(key('like')), null);
  assert.equal(await client.incr(key('like')), 1);
  assert.deepEqual(await Promise.all([client.incrBy(key('like'), 41), client.get(key('like'))]), [42, '42']);
  assert.equal(await client.hSet(`posts:${id}`, { view: 7, repost: 8 }), 2);
  assert.deepEqual({ ...(await client.hGetAll(`posts:${id}`)) }, { repost: '8', like: '42', view: '7' });
  assert.deepEqual(await client.hmGet(`posts:${id}`, ['like', 'comment']), ['42', null]);
  assert.deepEqual(await client.multi().incr(key('like')).get(key('like')).exec(), [43, '43']);
  assert.deepEqual((await client.scan('0', { MATCH: `posts:${id}`, COUNT: 10000 })).keys, [`posts:${id}`]);
  await assert.rejects(client.set(key('like'), 'many'), /not an integer/);
  assert.deepEqual(await client.sendCommand(['COUNTD.INCR', key('view'), '1', 'KEY', `${id}-${RESP}`]), [8]);
  assert.deepEqual(await client.sendCommand(['COUNTD.INCR', key('view'), '1', 'KEY', `${id}-${RESP}`]), [8]);
  assert.equal(await client.del([`posts:${id}`]), 1);
  assert.equal(await client.exists([`posts:${id}`, key('like')]), 0);
  await client.close();
}

async function ioredis() {
  const client = new Redis({ host, port: Number(port) });
  const replies = await client.pipeline().incr(key('like')).hincrby(`posts:${id}`, 'view', 5).mget(key('like'), key('view'), key('repost')).exec();
  assert.deepEqual(replies, [[null, 1], [null, 5], [null, ['1', '5', null]]]);
  assert.deepEqual(await client.hgetall(`posts:${id}`), { like: '1', view: '5' });
  assert.deepEqual(await client.multi().decr(key('like')).hlen(`posts:${id}`).exec(), [[null, 0], [null, 1]]);
  assert.match(await client.info(), /redis_version/);
  assert.equal(await client.del(`posts:${id}`), 1);
  await client.quit();
}

(async () => {
  await nodeRedis(2);
  await nodeRedis(3);
  await ioredis();
  console.log('ok');
})().catch((err) => {
  console.error(err);
  process.exit(1);
});
