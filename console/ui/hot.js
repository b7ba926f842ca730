// Hot now: the ids that gained most in a column, and those with the largest counts.
import * as api from './api.js';
import {copyable, dateOf, failed, h, num, table} from './dom.js';
import {notify, state} from './state.js';

// Milliseconds between two reads of a list. A longer window costs more to read, and changes less.
const lists = [
  {title: 'Last minute', call: 'hot', query: 'window=1m&', every: 0},
  {title: 'Last hour', call: 'hot', query: 'window=1h&', every: 10_000},
  {title: 'Last day', call: 'hot', query: 'window=24h&', every: 30_000},
  {title: 'Largest counts', call: 'top', query: '', every: 10_000},
];
const unknown = 2n ** 63n - 1n; // stands for an unknown error

export function hotPage(keyspace = 'posts', column, limit = '10') {
  const page = {title: 'Hot now'};
  const parts = new Map(); // for each list: its answer or failure, and when to read it again
  const all = () => (state.keyspaces ?? []).filter(k => k.kind === 'counters');
  const chosen = () => all().find(k => k.name === keyspace);
  const columnOf = k => column ?? k.columns[0];
  const pathOf = (k, {call, query}) => `v1/${call}/${k.name}/${columnOf(k)}?${query}limit=${limit}`;

  // Do not wait for the lists, because the first call for the largest counts may take seconds.
  page.load = async () => {
    const k = chosen();
    for (const list of k ? lists : []) {
      const part = parts.get(list) ?? {next: 0};
      if (Date.now() < part.next) continue;
      part.next = Infinity;
      api.get(pathOf(k, list)).then(value => ({value, next: Date.now() + list.every}), failure => ({failure, next: 0}))
        .then(part => { parts.set(list, part); notify(); });
      parts.set(list, part);
    }
  };

  page.render = () => {
    const k = chosen();
    const links = (what, names, current, hrefOf) => h('p', {class: 'links'}, `${what}: `, names.map(name => [h('a', {href: `#/hot/${hrefOf(name)}`, 'aria-current': name === current && 'true'}, name), ' ']));
    const head = [h('h1', null, 'Hot now'), links('Keyspace', all().map(k => k.name), keyspace, name => name)];
    if (!k) return [head, h('p', {class: 'muted'}, state.keyspaces ? 'There is no such keyspace of counters.' : 'Asking the node …')];
    return [head,
      links('Column', k.columns, columnOf(k), name => `${k.name}/${name}/${limit}`),
      links('Rows', ['10', '100'], limit, rows => `${k.name}/${columnOf(k)}/${rows}`),
      h('div', {class: 'cards'}, lists.map(list => h('section', {class: 'card', 'aria-label': list.title}, h('h2', null, list.title),
        shown(k.name, columnOf(k), list, parts.get(list) ?? {}), copyable(api.curl(pathOf(k, list)), `curl: ${list.title}`)))),
      h('p', {class: 'muted'}, 'Adds, members and messages gain; sets, imports and deletions do not. Ids without counts are left out.')];
  };
  return page;
}

function shown(keyspace, column, {title, call}, {value, failure}) {
  if (failure && failure.code !== 'not_ready') return failed(failure);
  if (!value) return h('p', {class: 'muted'}, failure?.message ?? 'Asking the node …');
  const columns = [{name: 'Id'}, {name: 'Gained', num: true}, {name: column, num: true}];
  const cells = r => [h('a', {href: `#/row/${keyspace}/${r.id}`}, r.id), `${num(r.gained)}${r.error ? ` ± ${r.error === unknown ? 'unknown' : num(r.error)}` : ''}`, num(r.counts[column])];
  const of = list => (call === 'hot' ? list : [list[0], list[2]]);
  return [h('p', {class: 'muted'}, (call === 'hot' ? offBy : exact)(value)),
    value.results.length > 0 && h('div', {class: 'tight'}, table(title, of(columns), value.results.map(r => of(cells(r)))))];
}

const exact = ({results}) => (results.length > 0 ? 'These counts are exact.' : 'No count is above 0.');

/** Describes the errors of the gains. */
function offBy({since, others_at_most: most, results}) {
  const none = results.length === 0, others = none ? 'id' : 'other id';
  return [`Since ${dateOf(since)}. `, none ? '' : results.some(r => r.error) ? 'A gain may be off by the number after ±. ' : 'These gains are exact. ',
    most === unknown ? `What ${others}s gained is unknown.` : `No ${others} gained${most ? ` more than ${num(most)}` : ''}.`];
}
