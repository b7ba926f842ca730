// The health of the cluster, and what to do.
import {bar, bytes, clock, count, duration, h, num, perSecond, table} from './dom.js';
import {chart} from './charts.js';
import {adviceOf, sections} from './runbook.js';
import {may, notify, state} from './state.js';
import {conditionOf, groupName, joined, warningsOf} from './warnings.js';

// With one of these warnings, some calls fail now, or would fail after one more loss. Other warnings can wait.
const urgent = new Set(['node_dead', 'node_silent', 'node_not_ready', 'group_no_leader', 'group_degraded', 'replicas_differ', 'cold_damaged', 'memory_full', 'disk_full', 'disk_hangs']);

let runbook;

export function homePage() {
  sections().then(all => { runbook = all; notify(); }, () => {});
  return {title: 'Home', render};
}

function render() {
  if (!may('status')) return [h('h1', null, 'Home'), h('p', null, 'Only a user with the role metrics or admin sees the state of the cluster. Keyspaces, rows and users are on the other pages.')];
  const {nodes, groups, version} = state;
  if (!nodes || !groups || !version) return [h('h1', null, 'Home'), h('p', {class: 'muted'}, 'Asking the node …')];
  const warnings = warningsOf(nodes.nodes, groups.groups, state.digests ?? [], version);
  return [
    verdict(nodes.nodes, groups.groups, version, warnings),
    warnings.length > 0 && warningList(warnings),
    h('section', {'aria-labelledby': 'graphs'}, h('h2', {id: 'graphs'}, 'Now'), h('div', {class: 'graphs'}, graphs())),
    h('section', {'aria-labelledby': 'nodes'}, h('h2', {id: 'nodes'}, 'Nodes'), nodeTable(nodes.nodes)),
    h('section', {'aria-labelledby': 'leaders'}, h('h2', {id: 'leaders'}, 'Groups'),
      h('details', null, h('summary', null, `${count(groups.groups.length, 'group')}: their leaders and voters`), groupTable(groups.groups))),
  ];
}

function verdict(nodes, groups, version, warnings) {
  const bad = warnings.some(w => urgent.has(w.code));
  const led = groups.filter(g => g.leader).length, answering = nodes.filter(n => n.answers).length;
  const rows = groups.reduce((sum, g) => sum + BigInt(g.rows), 0n);
  const n = joined(warnings).length;
  const now = n === 0 ? 'All is well' : bad ? `Not well: ${count(n, 'warning')}` : `It works, with ${count(n, 'warning')}`;
  const stale = state.down !== null;
  return h('section', {class: `verdict ${stale ? 'stale' : bad ? 'bad' : n > 0 ? 'warn' : 'good'}`, key: 'verdict'},
    h('h1', {'data-test': 'verdict'}, stale ? `Not known. At ${clock(state.nodes.at)}: ${now.toLowerCase()}` : now),
    h('p', null, [`${answering} of ${count(nodes.length, 'node')} ${nodes.length === 1 ? 'answers' : 'answer'}`, `${led} of ${count(groups.length, 'group')} have a leader`, count(rows, 'row'),
      `cluster version ${version.version}`].join(' · ')));
}

function warningList(warnings) {
  return h('section', {'aria-labelledby': 'warnings', key: 'warnings'}, h('h2', {id: 'warnings'}, 'What to do'),
    h('ul', {class: 'warnings', 'aria-live': 'polite'}, joined(warnings).map(w => h('li', {class: urgent.has(w.code) ? 'bad' : 'warn', key: w.code + w.text, 'data-code': w.code},
      h('h3', null, w.text),
      h('div', {class: 'advice'}, adviceOf(runbook, w)),
      h('p', null, h('a', {href: `#/runbook/${w.code}`}, `Runbook: ${w.code}`))))));
}

function graphs() {
  const {rates, latencies} = state;
  return [
    chart('Increments and other ops, all nodes', rates.at, [{name: 'written', colour: 'series-1', of: rates.written}], perSecond),
    chart('Ids read, all nodes', rates.at, [{name: 'read', colour: 'series-2', of: rates.read}], perSecond),
    chart(`Latency of HTTP writes at ${state.own}`, latencies.at, [{name: '99 %', colour: 'series-1', of: latencies.write99, least: 0.001}, {name: 'median', colour: 'series-3', of: latencies.write50}], duration),
    chart(`Latency of HTTP reads at ${state.own}`, latencies.at, [{name: '99 %', colour: 'series-2', of: latencies.read99, least: 0.001}, {name: 'median', colour: 'series-3', of: latencies.read50}], duration),
  ];
}

const words = {alive: 'well', silent: 'does not answer'};

function nodeTable(nodes) {
  return table('Nodes', [{name: 'Node'}, {name: 'Zone'}, {name: 'State'}, {name: 'Version'}, {name: 'Leads', num: true}, {name: 'Replicas', num: true}, {name: 'Memory'}, {name: 'Disk'}, {name: 'HTTP'}],
    nodes.map(n => {
      const condition = conditionOf(n);
      return [
        h('strong', {'data-node': n.id}, n.id), n.zone || '–',
        h('span', {class: `state ${condition === 'alive' ? 'good' : n.alive && n.answers && !n.not_ready ? 'warn' : 'bad'}`, 'data-state': condition}, words[condition] ?? condition),
        n.version, num(n.leads), num(n.replicas), n.answers ? memory(n) : '–', n.answers ? disk(n) : '–', h('span', {class: 'muted'}, n.http_addr),
      ];
    }));
}

function memory(n) {
  if (n.memory_limit_bytes === 0) return `${bytes(n.memory_needed_bytes)}, no limit`;
  const share = Number(n.memory_needed_bytes) / Number(n.memory_limit_bytes);
  const text = `${bytes(n.memory_needed_bytes)} of ${bytes(n.memory_limit_bytes)}`;
  return [bar(text, [{share, class: share > 7 / 8 ? 'part-bad' : 'part-1'}]), h('small', null, text)];
}

function disk(n) {
  const share = Number(n.disk_needed_bytes) / Math.max(1, Number(n.disk_free_bytes));
  const text = `${bytes(n.disk_free_bytes)} free; writes stop at ${bytes(n.disk_needed_bytes)}`;
  return [bar(text, [{share, class: share > 3 / 4 ? 'part-bad' : 'part-2'}]), h('small', null, text)];
}

function groupTable(groups) {
  return table('Groups', [{name: 'Group'}, {name: 'Leader'}, {name: 'Voters'}, {name: 'Others'}, {name: 'Behind', num: true}, {name: 'Rows', num: true}, {name: 'Memory', num: true}],
    groups.map(g => [groupName(g), g.leader || h('span', {class: 'state bad'}, 'none'), g.voters.join(', '), g.non_voters.join(', ') || '–',
      count(Math.max(0, ...g.replicas.map(r => Number(r.lag))), 'entry', 'entries'), num(g.rows), bytes(g.bytes)]));
}
