// The driver of the JavaScript client: see README.md.
import {createInterface} from 'node:readline';
import {Countd, CountdError} from '../js/dist/esm/index.js';
import {parse, stringify} from '../js/dist/esm/json.js';

const db = Countd.open({addrs: process.argv.slice(2), bigints: true, timeoutMs: 2_000, retryForMs: 60_000});
const say = line => process.stdout.write(stringify(line) + '\n');

const calls = {
  createKeyspace: (name, columns) => db.createKeyspace({name, columns}),
  scan: (keyspace, o) => all(db.scan(keyspace, o)),
  followees: (user, o) => all(db.followees(user, o)),
  // Adds 1 to a column of each row of a list, several at once, and then again through a Writer.
  async count(keyspace, column, ids, atOnce) {
    const left = [...ids];
    const work = async () => {
      for (let id = left.pop(); id !== undefined; id = left.pop()) await db.incr(keyspace, id, {[column]: 1});
    };
    await Promise.all(Array.from({length: atOnce}, work));
    const writer = db.writer({retryForMs: 60_000, batchOps: 50});
    for (const id of ids) await writer.add(keyspace, id, {[column]: 1});
    await writer.close();
    return ids.length;
  },
};

async function all(pages) {
  const items = [];
  for await (const item of pages) items.push(item);
  return items;
}

for await (const line of createInterface({input: process.stdin})) {
  const {call, args} = parse(line, true);
  try {
    say({ok: await (calls[call] ?? db[call].bind(db))(...args)});
  } catch (e) {
    if (!(e instanceof CountdError)) throw e;
    say({error: {code: e.code, status: e.status, field: e.field, maybe_applied: e.maybeApplied, message: e.message}});
  }
}
