// The warnings of `countctl status`: the same codes and texts. A test compares both on live clusters.
import {count, num} from './dom.js';

const lagWarned = 1000;
const unevenRowsMin = 10_000;
const votersWanted = 3;
const misfitShare = 10;

export const groupName = g => (g.keyspace === 'meta' ? 'meta' : `${g.keyspace}/${g.shard}`);

/** Returns the state of a node as one word. */
export function conditionOf(n) {
  if (!n.alive) return 'dead';
  if (!n.answers) return 'silent';
  if (n.not_ready) return 'not ready';
  return n.state === 'active' ? 'alive' : n.state;
}

/** Returns the warnings: {code, text}, with their node, group or keyspace, and a text for several of them. */
export function warningsOf(nodes, groups, digests, version) {
  const found = [];
  const dead = new Set(nodes.filter(n => !n.alive).map(n => n.id));
  for (const n of nodes) ofNode(n, found);
  const bare = nodes.filter(n => n.zone === '');
  if (bare.length > 0 && bare.length < nodes.length) {
    found.push({code: 'zones_mixed', node: bare[0].id, text: `${bare.length} of ${nodes.length} nodes have no zone, such as ${bare[0].id}: they count as one zone together`});
  }
  const staying = nodes.filter(n => n.state !== 'leaving').length;
  for (const g of groups) ofGroup(g, dead, Math.min(votersWanted, staying), found);
  ofDifferences(digests, found);
  ofSkew(groups, found);
  ofMisfits(groups, found);
  if (version.held) found.push({code: 'version_held', text: `the cluster version is held at ${version.version}, the nodes support ${version.max}`});
  else if (nodes.some(n => n.version !== nodes[0].version)) found.push({code: 'versions_differ', text: 'the nodes run programs of different versions'});
  return found;
}

function ofNode(n, found) {
  const warn = (code, plural, text) => found.push({code, plural, text, node: n.id});
  switch (conditionOf(n)) {
    case 'dead':
      warn('node_dead', 'are dead: no other node hears of them', `${n.id} is dead: no other node hears of it; it holds ${n.replicas} replicas`);
      break;
    case 'silent':
      warn('node_silent', 'did not answer within a second, though they are not known to be dead', `${n.id} did not answer within a second, though it is not known to be dead`);
      break;
    case 'not ready':
      warn('node_not_ready', `are not ready: ${n.not_ready}`, `${n.id} is not ready: ${n.not_ready}`);
  }
  if (n.state === 'draining') warn('node_draining', 'are drained', `${n.id} is drained`);
  if (n.state === 'leaving') warn('node_leaving', 'are leaving', `${n.id} is leaving; it holds ${n.replicas} replicas`);
  if (n.join_ignored) {
    warn('join_ignored', undefined, `${n.id} is the only node of its cluster: it ignores --join and --bootstrap-expect; to join another cluster it needs a new data directory`);
  }
  if (n.insecure) {
    warn('insecure', 'listen beyond loopback without TLS or authentication, by --insecure',
      `${n.id} listens beyond loopback without TLS or authentication, by --insecure`);
  }
  for (const problem of n.cert_problems ?? []) warn('certificate', undefined, `${n.id}: ${problem}`);
  if (n.backup_problem) warn('backup', undefined, `${n.id}: ${n.backup_problem}`);
  if (n.memory_full) warn('memory_full', 'are at their memory limit and take no new rows', `${n.id} is at its memory limit and takes no new rows`);
  if (n.disk_hangs) warn('disk_hangs', 'have disks that hang or are full', `the disk of ${n.id} hangs or is full: a write of its log has not ended for over a second`);
  if (n.disk_full) warn('disk_full', 'have disks at their reserve and take no writes', `the disk of ${n.id} is at its reserve and takes no writes`);
}

function ofGroup(g, dead, wanted, found) {
  const warn = (code, plural, text, node) => found.push({code, plural, text: groupName(g) + text, group: groupName(g), node});
  const alive = g.voters.filter(v => !dead.has(v)).length;
  const gone = g.voters.filter(v => dead.has(v)).sort();
  const lost = g.voters.length > 0 && [...g.voters, ...g.non_voters].every(m => dead.has(m));
  if (lost) warn('group_no_leader', `have all replicas on dead nodes ${gone.join(', ')}`, `: all its replicas are on dead nodes ${g.voters.join(', ')}`);
  else if (g.leader === '') {
    warn('group_no_leader', `have no leader; ${alive} of ${g.voters.length} voters are alive`, ` has no leader; ${alive} of its ${g.voters.length} voters are alive`);
  }
  if (!lost && alive < g.voters.length) {
    warn('group_degraded', `have ${alive} of ${g.voters.length} voters alive: ${few(gone)} ${gone.length === 1 ? 'is' : 'are'} dead`, ` has ${alive} of its ${g.voters.length} voters alive`);
  } else if (!lost && g.target.length < wanted) {
    warn('group_few_voters', `are to have ${g.target.length} voters, there are nodes for ${wanted}`, ` is to have ${g.target.length} voters, there are nodes for ${wanted}`);
  } else if (!lost && g.voters.toSorted().join() !== g.target.toSorted().join()) {
    warn('group_moving', 'are being moved', ` has voters ${g.voters.join(',')} and is to have ${g.target.join(',')}`);
  }
  for (const r of g.replicas) {
    if (r.lag > lagWarned) warn('replica_lags', `are more than ${num(lagWarned)} entries behind on ${r.node}`, ` on ${r.node} is ${num(r.lag)} entries behind`, r.node);
    if (r.cold_damaged) warn('cold_damaged', `have cold rows on ${r.node} that cannot be read`, ` on ${r.node} has cold rows that cannot be read`, r.node);
  }
}

// Two replicas at one index of the log must have one digest, and one term and checksum of the entry there.
function ofDifferences(digests, found) {
  for (const g of digests) {
    const d = digestDifference(g) ?? entryDifference(g);
    if (d) found.push({code: 'replicas_differ', group: groupName(g), plural: 'have replicas that differ', text: `${groupName(g)} differs at index ${d}`});
  }
}

function digestDifference(g) {
  const seen = new Map();
  for (const r of g.replicas) {
    for (const {index, digest} of [{index: r.applied_index, digest: r.digest}, ...r.marks]) {
      const first = seen.get(index);
      if (first && first.digest !== digest) return `${index}: ${first.node} has digest ${first.digest}, ${r.node} has digest ${digest}`;
      if (!first) seen.set(index, {node: r.node, digest});
    }
  }
  return undefined;
}

// Entries are compared in the range of indexes that both replicas report.
function entryDifference(g) {
  const replicas = g.replicas.filter(r => r.entries.length > 0).map(r => ({node: r.node, entries: new Map(r.entries.map(e => [e.index, `term ${e.term} crc ${e.crc}`]))}));
  for (const [i, one] of replicas.entries()) {
    for (const other of replicas.slice(i + 1)) {
      const [a, b] = [[...one.entries.keys()], [...other.entries.keys()]];
      for (let index = Math.max(a[0], b[0]); index <= Math.min(a.at(-1), b.at(-1)); index++) {
        const [here, there] = [one.entries.get(index) ?? 'no entry', other.entries.get(index) ?? 'no entry'];
        if (here !== there) return `${index}: ${one.node} has ${here}, ${other.node} has ${there}`;
      }
    }
  }
  return undefined;
}

function byKeyspace(groups) {
  return Object.entries(Object.groupBy(groups, g => g.keyspace)).sort(([a], [b]) => (a < b ? -1 : 1));
}

const rowsOf = groups => groups.reduce((sum, g) => sum + Number(g.rows), 0);

function ofSkew(groups, found) {
  for (const [keyspace, shards] of byKeyspace(groups)) {
    const g = shards.reduce((most, g) => (g.rows > most.rows ? g : most));
    if (g.rows >= unevenRowsMin && g.rows * shards.length > 2 * rowsOf(shards)) {
      found.push({code: 'shards_uneven', keyspace, text: `${groupName(g)} holds ${num(g.rows)} of the ${num(rowsOf(shards))} rows of ${keyspace}, more than twice its share of ${shards.length} shards`});
    }
  }
}

function ofMisfits(groups, found) {
  for (const [keyspace, shards] of byKeyspace(groups)) {
    const misfits = shards.flatMap(g => g.id_layout_misfit ?? []);
    const rows = misfits.reduce((sum, m) => sum + Number(m.rows), 0);
    if (rows === 0 || rows * misfitShare < rowsOf(shards)) continue;
    const m = misfits.reduce((most, m) => (m.rows > most.rows ? m : most));
    const advice = m.fits === '' ? 'no layout with a name fits more of the rows' : `start the nodes with --id-layout ${keyspace}=${m.fits}`;
    found.push({code: 'id_layout_misfit', keyspace, text: `${num(rows)} rows of ${keyspace}, as ${m.id}, are not of layout ${m.layout}; ${advice}`});
  }
}

/** Joins names: all of four, or three and the number of the others. */
function few(names) {
  return names.length <= 4 ? names.join(', ') : `${names.slice(0, 3).join(', ')} and ${names.length - 3} more`;
}

/** Merges warnings that differ only in their node or group. */
export function joined(warnings) {
  const kinds = Map.groupBy(warnings, w => (w.plural === undefined ? w : `${w.code} ${w.plural}`));
  return [...kinds.values()].map(alike => {
    const [w] = alike;
    if (alike.length === 1) return w;
    return {...w, text: `${w.group ? count(alike.length, 'group') : few(alike.map(w => w.node))} ${w.plural}`};
  });
}
