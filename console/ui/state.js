// The state that all pages share: the caller, and the cluster. It polls while the page is visible.
import * as api from './api.js';
import {latenciesOf, quantileOf, rateOf} from './rates.js';

const heartbeatEvery = 1000;
const pollEvery = 2000;
const metricsEvery = 4000;
const versionEvery = 10_000;
const digestsEvery = 60_000; // each answer has over a hundred values for each replica
const pointsMax = 450; // 15 minutes of polls

export const state = {
  who: null,     // the answer of /v1/whoami; null until it is known
  own: '',       // the name of the node that answers this page
  down: null,    // since when the node is silent, in ms; null while it answers
  nodes: null,   // the answer of /v1/admin/nodes, and at, the time of the read. The next four are similar
  groups: null,
  digests: null,
  version: null,
  keyspaces: null,
  failure: null, // why the cluster's state could not be read, although the node answers
  // Data of the graphs: times in seconds, and for each a value or null.
  rates: {at: [], written: [], read: []},
  latencies: {at: [], write50: [], write99: [], read50: [], read99: []},
  lastRates: {written: null, read: null},
};

const changed = new EventTarget();
export const onChange = run => changed.addEventListener('change', run);
export const notify = () => changed.dispatchEvent(new Event('change'));

export const may = access => state.who?.may.includes(access) ?? false;
export const signedOut = () => state.who !== null && state.who.may.length === 0;

/** Reads the caller's name and roles. */
export async function identify() {
  state.who = await api.get('v1/whoami');
  notify();
  dispatchEvent(new Event('identified'));
}

export async function readKeyspaces() {
  state.keyspaces = (await api.get('v1/keyspaces')).keyspaces;
  notify();
}

const pause = ms => new Promise(done => setTimeout(done, ms));

/** Runs a function at a regular interval in ms, while the page is visible. It returns a function that ends this. */
export function repeat(every, run) {
  let ended = false;
  (async () => {
    while (!ended) {
      if (!document.hidden) await run();
      await pause(every);
    }
  })();
  return () => { ended = true; };
}

export function start() {
  repeat(heartbeatEvery, heartbeat);
  repeat(pollEvery, pollCluster);
  repeat(metricsEvery, pollMetrics);
  addEventListener('signed-out', () => identify().catch(() => {}));
}

const answers = () => api.text('healthz', {timeout: 1500}).then(() => true, () => false);

// After two silent polls, a node is down: a killed node within 2 s, a hanging node within 5 s.
async function heartbeat() {
  if (!await answers() && (state.down !== null || !await pause(300).then(answers))) {
    state.down ??= Date.now();
    notify();
    return;
  }
  const back = state.down !== null;
  state.down = null;
  if (state.who === null || back) await identify().catch(failure => { state.failure = failure; });
}

let read = {}; // when each rarely changing answer was read

async function pollCluster() {
  if (!may('status') || state.down !== null) return;
  try {
    const at = Date.now();
    const due = (which, every) => at - (read[which] ?? -Infinity) >= every && (read[which] = at);
    const [nodes, groups, version, digests, cluster] = await Promise.all([
      api.get('v1/admin/nodes'), api.get('v1/admin/groups'),
      due('version', versionEvery) ? api.get('v1/admin/version') : state.version,
      due('digests', digestsEvery) ? api.get('v1/admin/digests') : {groups: state.digests},
      state.own ? null : api.get('v1/cluster'),
    ]);
    const before = state.nodes;
    state.nodes = {...nodes, at};
    state.groups = {...groups, at, before: state.groups && {at: state.groups.at, groups: state.groups.groups}};
    state.version = version;
    state.digests = digests.groups;
    state.failure = null;
    if (cluster) state.own = cluster.node;
    if (before) {
      state.lastRates = {written: rateOf(before, state.nodes, 'ops_written'), read: rateOf(before, state.nodes, 'ids_read')};
      add(state.rates, {at: at / 1000, ...state.lastRates});
    }
  } catch (failure) {
    read = {};
    state.failure = failure;
  }
  notify();
}

let latencies;

async function pollMetrics() {
  if (!may('status') || state.down !== null) return;
  const text = await api.text('metrics').catch(() => null);
  if (text === null) return;
  const before = latencies;
  latencies = latenciesOf(text);
  if (!before) return;
  const of = (name, q) => quantileOf(before, latencies, name, q);
  add(state.latencies, {at: Date.now() / 1000, write50: of('write', 0.5), write99: of('write', 0.99), read50: of('read', 0.5), read99: of('read', 0.99)});
}

/** Adds a point to the lists of a graph. After a pause, it first adds a gap. */
function add(lists, point) {
  const last = lists.at.at(-1);
  const gap = last !== undefined && point.at - last > 10;
  for (const [name, list] of Object.entries(lists)) {
    if (gap) list.push(name === 'at' ? last + 1 : null);
    list.push(point[name]);
    list.splice(0, list.length - pointsMax);
  }
}
