// Sources: position, lag, and the reason of a stall.
import * as api from './api.js';
import {confirm, copyable, count, failed, field, h, num, perSecond, table} from './dom.js';

export function sourcesPage(name) {
  const page = {title: name ? `Source ${name}` : 'Sources', every: 2000};
  let sources, failure;
  page.load = async () => {
    try {
      sources = (await api.get('v1/sources')).sources;
      failure = null;
    } catch (f) {
      failure = f;
    }
  };
  page.render = () => {
    if (failure) return [h('h1', null, page.title), failed(failure)];
    if (!sources) return [h('h1', null, page.title), h('p', {class: 'muted'}, 'Asking the node …')];
    return name ? one(sources.find(s => s.name === name), page) : all(sources);
  };
  return page;
}

const stateOf = s => h('span', {class: `state ${{running: 'good', paused: 'warn', stalled: 'bad'}[s.state]}`}, s.state);
const lagText = lag => (lag === undefined ? '–' : count(lag, 'message'));
const rateOf = s => s.partitions.reduce((sum, p) => sum + p.rate, 0);

function all(sources) {
  return [h('h1', null, 'Sources'),
    table('Sources', [{name: 'Source'}, {name: 'Type'}, {name: 'State'}, {name: 'Lag', num: true}, {name: 'Rate', num: true}, {name: 'Applied', num: true}, {name: 'Rejected', num: true}, {name: 'Reason'}],
      sources.map(s => [h('a', {href: `#/sources/${s.name}`, 'data-source': s.name}, s.name), s.type, stateOf(s), lagText(s.lag), perSecond(rateOf(s)), num(s.applied), num(s.rejected), s.reason || '–']),
      'There is no source. countctl source create FILE.yaml makes one.'),
    copyable(api.curl('v1/sources'), 'curl for the sources')];
}

function one(s, page) {
  if (!s) return [h('h1', null, page.title), h('p', null, 'There is no such source.')];
  const change = (verb, says, danger = false) => confirm({
    title: `${verb[0].toUpperCase()}${verb.slice(1)} ${s.name}?`, action: verb[0].toUpperCase() + verb.slice(1), danger, says: [says],
    run: async () => {
      const now = await api.send('POST', `v1/sources/${s.name}/${verb}`, {}, {timeout: 15_000});
      page.reload?.();
      return `${now.name} is ${now.state}.`;
    },
  });
  return [h('p', null, h('a', {href: '#/sources'}, '← Sources')), h('h1', null, s.name),
    h('p', null, stateOf(s), ` ${s.type}`, s.node && `, read by ${s.node}`, s.reason && `: ${s.reason}`),
    h('dl', {class: 'counts'},
      [['lag', lagText(s.lag)], ['rate', perSecond(rateOf(s))], ['applied', count(s.applied, 'message')], ['rejected', count(s.rejected, 'message')]].map(([k, v]) => h('div', {key: k}, h('dt', null, k), h('dd', null, v)))),
    s.last_rejected && h('p', null, `Last rejected: position ${num(s.last_rejected.position)} of partition ${s.last_rejected.partition}: ${s.last_rejected.reason}`),
    h('p', null, s.dead_letters ? ['What is rejected goes to ', h('code', null, s.dead_letters), '.'] : 'What is rejected is skipped: the source has no dead letters.'),
    h('div', {class: 'buttons'},
      s.state === 'paused'
        ? [h('button', {type: 'button', class: 'primary', onclick: () => change('resume', 'The nodes go on reading where the shards are. Each message counts once.')}, 'Resume …'),
          h('button', {type: 'button', onclick: () => seek(s, page)}, 'Seek …')]
        : h('button', {type: 'button', onclick: () => change('pause', 'The readers finish what they have in hand. Messages wait in the queue until you resume; keep an eye on how long the queue keeps them.')}, 'Pause …')),
    h('h2', null, 'Partitions'),
    table('Partitions', [{name: 'Partition', num: true}, {name: 'State'}, {name: 'Node'}, {name: 'Position', num: true}, {name: 'End', num: true}, {name: 'Lag', num: true}, {name: 'Rate', num: true}, {name: 'Rejected', num: true}, {name: 'Reason'}],
      s.partitions.map(p => [num(p.partition), stateOf(p), p.node || '–', String(p.position ?? '–'), String(p.end ?? '–'), lagText(p.lag), perSecond(p.rate), num(p.rejected), p.reason || '–'])),
    copyable(api.curl(`v1/sources/${s.name}`), 'curl for this source')];
}

function seek(s, page) {
  confirm({
    title: `Seek ${s.name}?`, action: 'Seek', danger: true,
    says: ['The source continues at the position that you give: that of the next message to read. Messages between the old and the new position count again, or never. Nothing is taken back.'],
    fields: [
      field('Partition', h('select', {name: 'partition'}, s.partitions.map(p => h('option', {value: p.partition}, `${p.partition}, now at ${p.position ?? 'no position'}`)))),
      field('Position', h('input', {name: 'position', required: true, autocomplete: 'off'}), 'a number; number-number for a Redis stream; hex/hex for PostgreSQL'),
    ],
    run: async form => {
      const position = /^[0-9]{1,18}$/.test(form.position) ? BigInt(form.position) : form.position;
      const now = await api.send('POST', `v1/sources/${s.name}/seek`, {positions: {[form.partition]: position}}, {timeout: 15_000});
      page.reload?.();
      return `${now.name} continues there once you resume it.`;
    },
  });
}
