// One row: its counts, the members of its sets, and an increment.
import * as api from './api.js';
import {confirm, copyable, dateOf, failed, field, h, num, table} from './dom.js';
import {intOf, isID} from './json.js';
import {may, state} from './state.js';

const pageOfMembers = 20;

export function rowPage(keyspace = 'posts', id = '', column = '') {
  const page = {title: id ? `Row ${id} of ${keyspace}` : 'Row', every: 1000};
  let row, failure, members, membersFailure, rises = {};

  page.load = async () => {
    if (!id) return;
    try {
      const now = await api.get(`v1/counters/${keyspace}/${id}`);
      if (row) for (const [c, n] of Object.entries(now.counts)) if (n !== row.counts[c]) rises[c] = BigInt(n) - BigInt(row.counts[c] ?? 0) + (rises[c] ?? 0n);
      row = now;
      failure = null;
    } catch (f) {
      failure = f;
    }
    if (column && (!members || members.ids.length <= pageOfMembers)) await readMembers();
  };

  async function readMembers(cursor) {
    try {
      const got = await api.get(`v1/members/${keyspace}/${column}/${id}?limit=${pageOfMembers}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`);
      members = {cursor: got.cursor, ids: [...(cursor ? members.ids : []), ...got.members]};
      membersFailure = null;
    } catch (f) {
      membersFailure = f;
    }
  }

  page.render = () => [h('h1', null, 'Row'), lookUp(keyspace, id), failure && failed(failure), row && !failure && [shown(), who()]];

  function shown() {
    const k = state.keyspaces?.find(k => k.name === keyspace);
    return h('section', {class: 'card', 'aria-label': `Counts of ${id}`},
      h('h2', null, `${keyspace} `, h('span', {class: 'id'}, id)),
      k && k.sharding !== 'hash' && h('p', {class: 'muted'}, shardText(k, id)),
      h('dl', {class: 'counts'}, Object.entries(row.counts).map(([c, n]) => h('div', {key: c},
        h('dt', null, c), h('dd', {'data-column': c}, num(n)),
        h('dd', {class: 'muted'}, rises[c] ? `${rises[c] > 0n ? '+' : ''}${num(rises[c])} while you look` : 'unchanged')))),
      h('p', {class: 'muted'}, 'Read each second; a read may be up to a second behind.'),
      may('ingest') && h('button', {type: 'button', class: 'primary', onclick: increment}, 'Increment …'),
      copyable(api.curl(`v1/counters/${keyspace}/${id}`), 'curl for this row'),
      copyable(api.curl(`v1/counters/${keyspace}/incr`, {method: 'POST', body: {ops: [{id, add: {[Object.keys(row.counts)[0]]: 1}}]}, write: true}), 'curl for an increment'));
  }

  function increment() {
    const columns = Object.keys(row.counts);
    confirm({
      title: `Increment ${id} of ${keyspace}?`, action: 'Add it',
      says: ['The number is added to the count for everybody, at once. A negative number takes away. To undo it, add the opposite.'],
      fields: [
        field('Column', h('select', {name: 'column'}, columns.map(c => h('option', {value: c}, c)))),
        field('Add', h('input', {name: 'add', required: true, value: '1', inputmode: 'numeric', pattern: '-?[0-9]{1,19}'}), 'a whole number'),
      ],
      run: async form => {
        const add = intOf(form.add);
        if (add === undefined) throw new api.Failure(0, 'invalid_argument', 'not a whole number of 64 bits');
        const {results: [after]} = await api.write(`v1/counters/${keyspace}/incr`, {ops: [{id, add: {[form.column]: add}}]});
        if (after.error) throw new api.Failure(409, after.error.code, after.error.message);
        page.reload?.();
        return `${form.column} is ${num(after.counts[form.column])} now.`;
      },
    });
  }

  function who() {
    const columns = Object.keys(row.counts);
    return h('section', {class: 'card', 'aria-labelledby': 'who'}, h('h2', {id: 'who'}, 'Who did it'),
      h('p', {class: 'links'}, 'Column: ', columns.map(c => [h('a', {href: `#/row/${keyspace}/${id}/${c}`, 'aria-current': c === column && 'true'}, c), ' '])),
      !column && h('p', {class: 'muted'}, 'Choose a column to see its members, newest first. The count may be larger: it has increments without a member too.'),
      membersFailure && failed(membersFailure),
      members && !membersFailure && [
        table(`Members of ${column}`, [{name: 'Member'}, {name: 'Since'}], members.ids.map(m => [h('a', {href: `#/user/${m.member}`, 'data-member': m.member}, m.member), dateOf(m.at)]), 'It has no members.'),
        members.cursor && h('button', {type: 'button', onclick: async () => { await readMembers(members.cursor); page.reload(); }}, 'More'),
        copyable(api.curl(`v1/members/${keyspace}/${column}/${id}?limit=${pageOfMembers}`), 'curl for its members'),
      ]);
  }

  return page;
}

function shardText(k, id) {
  const shard = BigInt(id) % BigInt(k.shards);
  const group = state.groups?.groups.find(g => g.keyspace === k.name && BigInt(g.shard) === shard);
  return `Shard ${shard} of ${k.shards}${group?.leader ? `, led by ${group.leader}` : ''}`;
}

function lookUp(keyspace, id) {
  const keyspaces = (state.keyspaces ?? []).filter(k => k.kind === 'counters');
  const input = h('input', {name: 'id', required: true, inputmode: 'numeric', autocomplete: 'off', pattern: '[0-9]{1,20}', value: id, 'aria-describedby': 'id-rule'});
  return h('form', {class: 'look', key: `look ${keyspace} ${keyspaces.length}`, onsubmit: e => {
    e.preventDefault();
    const form = Object.fromEntries(new FormData(e.target));
    if (isID(form.id)) location.hash = `#/row/${form.keyspace}/${form.id}`;
    else e.target.querySelector('small').textContent = 'Not an id: a whole number up to 18446744073709551615, without zeros in front.';
  }},
  field('Keyspace', h('select', {name: 'keyspace'}, keyspaces.map(k => h('option', {value: k.name, selected: k.name === keyspace}, k.name)))),
  h('label', {class: 'field'}, h('span', null, 'Id'), input, h('small', {id: 'id-rule'}, '')),
  h('button', {type: 'submit', class: 'primary'}, 'Look up'));
}
