// Keyspaces: their sizes, and the tiers of their rows.
import * as api from './api.js';
import {bar, bytes, confirm, copyable, count, field, h, num, perSecond, table} from './dom.js';
import {appliedOf, groupRate} from './rates.js';
import {may, readKeyspaces, state} from './state.js';

export function keyspacesPage(name) {
  return {title: name ? `Keyspace ${name}` : 'Keyspaces', load: () => readKeyspaces().catch(() => {}), every: 5000, render: () => (name ? one(name) : all())};
}

const sum = (groups, valueOf) => groups.reduce((total, g) => total + BigInt(valueOf(g)), 0n);

/** Returns the sum of the sizes of a keyspace's groups, or null if this user may not read them. */
function sizeOf(keyspace) {
  const groups = state.groups?.groups.filter(g => g.keyspace === keyspace);
  if (!groups?.length) return null;
  const rows = sum(groups, g => g.rows), memory = sum(groups, g => g.bytes);
  const packed = sum(groups, g => g.sealed_rows), cold = sum(groups, g => g.cold_rows);
  return {groups, rows, memory, packed, cold, hot: rows - packed - cold, disk: sum(groups, g => g.cold_bytes), perRow: rows > 0n ? Number(memory) / Number(rows) : null};
}

const rate = (keyspace, valueOf) => groupRate(state.groups.before, state.groups, keyspace, valueOf);

function tiers(size) {
  if (size.rows === 0n) return '–';
  const share = n => Number(n) / Number(size.rows);
  const text = [[size.hot, 'hot'], [size.packed, 'packed'], [size.cold, 'on disk']].filter(([n]) => n > 0n).map(([n, tier]) => `${num(n)} ${tier}`).join(', ');
  return [bar(text, [{share: share(size.hot), class: 'part-1'}, {share: share(size.packed), class: 'part-3'}, {share: share(size.cold), class: 'part-2'}]), h('small', null, text)];
}

const perRow = size => (size.perRow === null ? '–' : `${size.perRow < 100 ? size.perRow.toFixed(1) : num(Math.round(size.perRow))} B`);

function all() {
  const sized = may('status');
  const columns = [{name: 'Keyspace'}, {name: 'Kind'}, {name: 'Columns'}, {name: 'Shards', num: true},
    ...(sized ? [{name: 'Rows', num: true}, {name: 'Memory', num: true}, {name: 'Bytes a row', num: true}, {name: 'Hot, packed, on disk'}, {name: 'Disk', num: true}, {name: 'New rows', num: true}, {name: 'Log entries', num: true}] : [])];
  const rows = (state.keyspaces ?? []).map(k => {
    const size = sized ? sizeOf(k.name) : null;
    return [h('a', {href: `#/keyspaces/${k.name}`, 'data-keyspace': k.name}, k.name), k.kind, k.columns.join(', ') || '–', num(k.shards),
      ...(!sized ? [] : size === null ? Array(7).fill('–') : [
        num(size.rows), bytes(size.memory), perRow(size), tiers(size), size.disk > 0n ? bytes(size.disk) : '–', perSecond(rate(k.name, g => g.rows)), perSecond(rate(k.name, appliedOf)),
      ])];
  });
  return [h('h1', null, 'Keyspaces'),
    table('Keyspaces', columns, rows, state.keyspaces ? 'None yet.' : 'Asking the node …'),
    sized && h('p', {class: 'muted'}, 'Memory is that of the leaders. One log entry may hold many ops. Hot and packed rows are in memory.'),
    may('admin') && h('button', {type: 'button', class: 'primary', onclick: create}, 'Create a keyspace'),
    copyable(api.curl('v1/keyspaces'), 'curl for the list of keyspaces')];
}

function one(name) {
  const k = state.keyspaces?.find(k => k.name === name);
  if (!k) return [h('h1', null, name), h('p', null, state.keyspaces ? 'There is no such keyspace.' : 'Asking the node …')];
  const size = may('status') ? sizeOf(name) : null;
  const settings = Object.entries(k).filter(([, of]) => of?.constructor === Object); // those with a value for each column
  // Later, a form to grow the keyspace will be behind its shards.
  return [h('p', null, h('a', {href: '#/keyspaces'}, '← Keyspaces')), h('h1', null, name),
    h('p', null, [k.kind, count(k.shards, 'shard'), `an id is in shard ${k.sharding === 'hash' ? 'hash of id' : 'id'} modulo ${k.shards}`, k.everywhere && 'each node has all of it'].filter(Boolean).join(' · ')),
    k.columns.length > 0 && h('p', null, 'Columns: ', k.columns.join(', '), settings.map(([name, of]) => `. ${name === 'floors' ? 'Never below' : name}: ${Object.entries(of).map(([c, n]) => `${c} ${num(n)}`).join(', ')}`)),
    k.kind === 'counters' && h('p', null, h('a', {href: `#/row/${name}`}, 'Look up a row'), ' · ', h('a', {href: `#/hot/${name}`}, 'What is hot')),
    size && table(`Shards of ${name}`, [{name: 'Shard', num: true}, {name: 'Leader'}, {name: 'Voters'}, {name: 'Rows', num: true}, {name: 'Share', num: true}, {name: 'Memory', num: true}, {name: 'Bytes a row', num: true}, {name: 'Hot, packed, on disk'}],
      size.groups.map(g => {
        const own = {rows: BigInt(g.rows), packed: BigInt(g.sealed_rows), cold: BigInt(g.cold_rows), hot: BigInt(g.rows) - BigInt(g.sealed_rows) - BigInt(g.cold_rows), perRow: g.rows > 0 ? Number(g.bytes) / Number(g.rows) : null};
        return [num(g.shard), g.leader || h('span', {class: 'state bad'}, 'none'), g.voters.join(', '), num(g.rows),
          size.rows > 0n ? `${(Number(g.rows) / Number(size.rows) * 100).toFixed(1)} %` : '–', bytes(g.bytes), perRow(own), tiers(own)];
      })),
    copyable(api.curl(`v1/counters/${name}/scan`, {method: 'POST', body: {limit: 10}}), `curl for rows of ${name}`)];
}

function create() {
  confirm({
    title: 'Create a keyspace', action: 'Create it',
    says: ['All nodes get its shards. The sharding is fixed for ever; columns can be added and shards multiplied later.'],
    fields: [
      field('Name', h('input', {name: 'name', required: true, pattern: '[a-z][a-z0-9_]{0,62}', autocomplete: 'off'}), '1 to 63 of a-z, 0-9 and _, from a letter on'),
      field('Columns', h('input', {name: 'columns', required: true, autocomplete: 'off', placeholder: 'like, view'}), '1 to 64 names, with commas between them'),
      field('Shards', h('input', {name: 'shards', type: 'number', min: 1, max: 64, placeholder: 'default'}), '1 to 64; empty for the default'),
      field('Sharding', h('select', {name: 'sharding'}, h('option', {value: 'modulo'}, 'modulo: by the id'), h('option', {value: 'hash'}, 'hash: for ids that share their lowest bits'))),
    ],
    run: async form => {
      const body = {name: form.name, columns: form.columns.split(',').map(c => c.trim()).filter(Boolean), sharding: form.sharding};
      if (form.shards) body.shards = Number(form.shards);
      const made = await api.send('POST', 'v1/keyspaces', body);
      await readKeyspaces().catch(() => {});
      return `Keyspace ${made.name} is there, with ${count(made.shards, 'shard')}.${made.warning ? ` ${made.warning}` : ''}`;
    },
  });
}
