// Rates of counters that begin at 0 at each start of a process. An unknown rate is null, never a guess. So a restart, a
// silent node and a pause of this page make gaps, not spikes or zeros.

/** A pause longer than this many milliseconds between two samples is a gap. */
export const gapMax = 10_000;

const difference = (before, after) => Number(BigInt(after) - BigInt(before));

/**
 * Returns the increase of a counter per second, as the sum over the nodes. A sample is {at, nodes}: the nodes of
 * /v1/admin/nodes, and when they were read. A node counts if it answered both times and did not restart.
 */
export function rateOf(before, after, counter) {
  const ms = before ? after.at - before.at : 0;
  if (ms <= 0 || ms > gapMax) return null;
  const known = new Map(before.nodes.filter(n => n.answers).map(n => [n.key, n]));
  let sum = null;
  for (const n of after.nodes) {
    const was = known.get(n.key);
    if (!n.answers || !was || was.life !== n.life) continue;
    const rise = difference(was[counter], n[counter]);
    if (rise >= 0) sum = (sum ?? 0) + rise;
  }
  return sum === null ? null : sum * 1000 / ms;
}

/** Returns the increase per second of a field, as the sum over the groups of a keyspace. A sample is {at, groups}. */
export function groupRate(before, after, keyspace, valueOf) {
  const ms = before ? after.at - before.at : 0;
  if (ms <= 0 || ms > gapMax) return null;
  const known = new Map(before.groups.map(g => [g.id, g]));
  let sum = null;
  for (const g of after.groups.filter(g => g.keyspace === keyspace)) {
    const was = known.get(g.id);
    if (!g.leader || !was?.leader) continue;
    const rise = difference(valueOf(was), valueOf(g));
    if (rise >= 0) sum = (sum ?? 0) + rise;
  }
  return sum === null ? null : sum * 1000 / ms;
}

/** Returns the applied index of a group's leader. It rises by 1 with each entry of the log. */
export const appliedOf = g => g.replicas.find(r => r.node === g.leader)?.applied_index ?? 0;

const classes = {
  read: /^(counters_(get|mget|scan)|members_(check|list|of)|unread_get|polls?|feed_(unread|followees)|timeline|outbox_list|notices_get|dots_get)$/,
  write: /^(counters_(incr|set|put|delete|correct)|ops|members_change|unread_(incr|reset)|outbox_(publish|remove)|feed_(reset|follow|unfollow|read)|notices_(publish|read|retract)|dots_(fire|clear))$/,
};

/** Returns, from /metrics, the start of the process and the histograms of latencies. */
export function latenciesOf(text) {
  const found = {start: 0, read: new Map(), write: new Map()};
  for (const line of text.split('\n')) {
    if (line.startsWith('process_start_time_seconds ')) found.start = Number(line.split(' ')[1]);
    if (!line.startsWith('countd_http_request_duration_seconds_bucket{')) continue;
    const endpoint = /endpoint="([^"]*)"/.exec(line)[1];
    const le = /le="([^"]*)"/.exec(line)[1];
    for (const [name, match] of Object.entries(classes)) {
      if (match.test(endpoint)) found[name].set(le, (found[name].get(le) ?? 0) + Number(line.slice(line.lastIndexOf(' '))));
    }
  }
  return found;
}

/** Returns a quantile of the durations between two results of latenciesOf, in seconds, or null for none. */
export function quantileOf(before, after, name, q) {
  if (!before || before.start !== after.start) return null;
  const counts = [...after[name]].map(([le, n]) => [le === '+Inf' ? Infinity : Number(le), n - (before[name].get(le) ?? 0)]).sort((a, b) => a[0] - b[0]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0 || counts.some(([, n]) => n < 0)) return null;
  let low = 0, below = 0;
  for (const [le, n] of counts) {
    if (n >= q * all) return le === Infinity ? low : low + (le - low) * (q * all - below) / (n - below);
    low = le;
    below = n;
  }
  return low;
}
