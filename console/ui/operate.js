// Orders of an operator. Each shows its effect and asks for confirmation first.
import * as api from './api.js';
import {confirm, copyable, dateOf, failed, field, h, num, table} from './dom.js';
import {state} from './state.js';
import {conditionOf, groupName} from './warnings.js';

export function operatePage() {
  const page = {title: 'Operate', every: 5000};
  let users, failure;
  page.load = async () => {
    try {
      users = (await api.get('v1/users')).users;
      failure = null;
    } catch (f) {
      failure = f;
    }
  };
  page.render = () => [h('h1', null, 'Operate'),
    !state.nodes || !state.groups || !state.version ? h('p', {class: 'muted'}, 'Asking the node …') : [nodes(), leaders(), upgrade()],
    backups(),
    h('section', {'aria-labelledby': 'users'}, h('h2', {id: 'users'}, 'Users and tokens'), failure ? failed(failure) : users ? userList(users, page) : h('p', {class: 'muted'}, 'Asking the node …'))];
  return page;
}

const button = (text, onclick, props) => h('button', {type: 'button', class: 'small', onclick, ...props}, text);

function nodes() {
  return h('section', {'aria-labelledby': 'nodes'}, h('h2', {id: 'nodes'}, 'Nodes'),
    h('p', {class: 'muted'}, 'Drain a node before work on its machine. To take it out for good, or to move replicas by hand, use countctl.'),
    table('Nodes', [{name: 'Node'}, {name: 'State'}, {name: 'Leads', num: true}, {name: 'Replicas', num: true}, {name: ''}], state.nodes.nodes.map(n => [
      h('strong', null, n.id), h('span', {'data-drain': n.id}, conditionOf(n)), num(n.leads), num(n.replicas),
      n.state === 'active' ? button('Drain …', () => drain(n), {'aria-label': `Drain ${n.id}`}) : button('Undrain …', () => undrain(n), {'aria-label': `Undrain ${n.id}`}),
    ])),
    copyable('countctl node remove NODE', 'command that removes a node'), copyable('countctl group move GROUP FROM TO', 'command that moves a replica'));
}

const others = n => state.nodes.nodes.filter(o => o.id !== n.id && o.answers && o.state === 'active').length;

function drain(n) {
  confirm({
    title: `Drain ${n.id}?`, action: 'Drain it', danger: others(n) === 0,
    says: [`${n.id} hands over the ${n.leads} groups that it leads, gets no new replicas, and /readyz there answers 503, so that load balancers leave it out. It keeps its ${n.replicas} replicas and still answers requests.`,
      others(n) === 0 ? 'No other node can lead: groups stay where they are.' : 'It stays drained, over restarts too, until you undrain it.'],
    run: async () => {
      const done = await api.send('POST', `v1/admin/nodes/${encodeURIComponent(n.key)}/drain`);
      return done.changed ? `${n.id} is being drained.` : `${n.id} was drained already.`;
    },
  });
}

function undrain(n) {
  confirm({
    title: `Undrain ${n.id}?`, action: 'Undrain it',
    says: [n.state === 'leaving' ? `${n.id} is leaving the cluster. This keeps it, unless it was removed already.` : `${n.id} leads groups again, and gets replicas again.`],
    run: async () => {
      await api.send('POST', `v1/admin/nodes/${encodeURIComponent(n.key)}/undrain`);
      return `${n.id} is active.`;
    },
  });
}

function leaders() {
  return h('section', {'aria-labelledby': 'leaders'}, h('h2', {id: 'leaders'}, 'Leaders'),
    h('details', null, h('summary', null, 'Transfer the leadership of a group'),
      h('p', {class: 'muted'}, 'The cluster evens out again what nodes lead, if a transfer made it uneven.'),
      table('Groups', [{name: 'Group'}, {name: 'Leader'}, {name: 'Voters'}, {name: ''}], state.groups.groups.map(g => [
        groupName(g), g.leader || 'none', g.voters.join(', '),
        g.leader && g.voters.length > 1 && button('Transfer …', () => transfer(g), {'aria-label': `Transfer ${groupName(g)}`}),
      ]))));
}

function transfer(g) {
  const name = groupName(g);
  confirm({
    title: `Transfer ${name}?`, action: 'Transfer it',
    says: [`${g.leader} stops leading ${name}, and the node that you choose leads it. Writes of the group wait for a moment.`],
    fields: [field('To', h('select', {name: 'to'}, g.voters.filter(v => v !== g.leader).map(v => h('option', {value: v}, v))))],
    run: async form => {
      const done = await api.send('POST', `v1/admin/groups/${g.id}/transfer`, {to: form.to});
      return `${done.group.leader} leads ${name}.`;
    },
  });
}

function upgrade() {
  const v = state.version;
  const programs = [...new Set(state.nodes.nodes.map(n => n.version))].sort().join(', ');
  const change = (title, action, says, body) => confirm({title, action, says: [says], run: async () => {
    const done = await api.send('POST', 'v1/admin/version', body);
    state.version = done.version;
    return `The cluster version is ${done.version.version}${done.version.held ? ', held' : ''}.`;
  }});
  return h('section', {'aria-labelledby': 'upgrade'}, h('h2', {id: 'upgrade'}, 'Upgrade'),
    h('p', null, `Cluster version ${v.version}${v.held ? ', held' : ''}. The nodes support ${v.max}. Programs: ${programs}.`),
    h('div', {class: 'buttons'},
      v.held
        ? [button('Finalize …', () => change('Finalize the upgrade?', 'Finalize it', `The cluster version is released and rises to ${v.max}. It never falls: programs of the former release can neither start nor join from then on.`, {finalize: true})),
          button('Release …', () => change('Release the cluster version?', 'Release it', 'The version rises by itself once all nodes support the next one, and never falls.', {hold: false}))]
        : button('Hold …', () => change('Hold the cluster version?', 'Hold it', `The cluster version stays at ${v.version} while you install another program, so that you can go back, one node at a time. Finalize when it has proved itself.`, {hold: true}))),
    copyable("countctl rolling-restart --exec 'ssh {id} sudo systemctl restart countd'", 'command that restarts the nodes one by one'));
}

function backups() {
  return h('section', {'aria-labelledby': 'backups'}, h('h2', {id: 'backups'}, 'Backups'),
    h('p', null, 'countctl makes them, on the machine that keeps them: under load, with every write that was acknowledged before it began.'),
    copyable('countctl backup backup-dir', 'command that takes a backup'), copyable('countctl restore backup-dir --check', 'command that checks a backup'), copyable('countctl restore backup-dir', 'command that restores a backup'));
}

function userList(users, page) {
  const enforced = state.who.auth === 'enforce';
  return [
    !enforced && h('p', {class: 'muted'}, `Tokens are ${state.who.auth === 'off' ? 'ignored' : 'checked, but nothing is refused'}: --auth ${state.who.auth}.`),
    table('Users', [{name: 'User'}, {name: 'May'}, {name: 'Tokens'}, {name: ''}], users.map(u => [
      h('strong', null, u.name), u.grants.map(g => `${g.role} of ${g.keyspaces.join(', ')}`.replace(/^(admin|metrics) of \*$/, '$1')).join('; '),
      u.tokens.length === 0 ? 'none' : h('ul', {class: 'plain'}, u.tokens.map(t => h('li', {key: t.id}, `${t.id}, ${t.expires_at ? `until ${dateOf(t.expires_at)}` : 'no end'} `, button('Revoke …', () => revoke(u, t, page), {'aria-label': `Revoke token ${t.id} of ${u.name}`})))),
      h('span', {class: 'buttons'}, button('New token …', () => newToken(u, page), {'aria-label': `New token for ${u.name}`}), button('Delete …', () => remove(u, page), {'aria-label': `Delete ${u.name}`})),
    ]), 'There is no user.'),
    button('Create a user …', () => create(page)),
  ];
}

const behind = done => (done.nodes_behind ? ` These nodes did not confirm it within a second: ${done.nodes_behind.join(', ')}.` : '');

function create(page) {
  confirm({
    title: 'Create a user', action: 'Create it',
    says: ['A user has no password. Give each service its own user, and then a token. A user of this name gets the new grant instead of its own, and keeps its tokens.'],
    fields: [
      field('Name', h('input', {name: 'name', required: true, pattern: '[A-Za-z0-9._\\-]{1,64}', autocomplete: 'off'}), '1 to 64 of letters, digits and . _ -'),
      field('Role', h('select', {name: 'role'}, ['reader', 'writer', 'ingest', 'metrics', 'admin'].map(r => h('option', {value: r}, r)))),
      field('Keyspaces', h('input', {name: 'keyspaces', value: '*', required: true, autocomplete: 'off'}), 'with commas between them; * for all. metrics and admin are always for all'),
    ],
    run: async form => {
      const keyspaces = form.role === 'metrics' || form.role === 'admin' ? ['*'] : form.keyspaces.split(',').map(k => k.trim()).filter(Boolean);
      const done = await api.send('PUT', `v1/users/${encodeURIComponent(form.name)}`, {grants: [{role: form.role, keyspaces}]});
      page.reload?.();
      return `User ${done.name} is there.${behind(done)}`;
    },
  });
}

function newToken(u, page) {
  confirm({
    title: `New token for ${u.name}`, action: 'Make it',
    says: ['The token is shown once: the cluster keeps only its hash.'],
    fields: [field('Valid for', h('input', {name: 'expires_in', value: '2160h', autocomplete: 'off'}), 'such as 2160h, which is 90 days; empty for no end')],
    run: async form => {
      const made = await api.send('POST', `v1/users/${encodeURIComponent(u.name)}/tokens`, form.expires_in ? {expires_in: form.expires_in} : {});
      page.reload?.();
      return h('div', null, h('p', null, `Token ${made.id}. Copy it now:`), copyable(made.token, 'the new token'));
    },
  });
}

function revoke(u, t, page) {
  confirm({
    title: `Revoke token ${t.id} of ${u.name}?`, action: 'Revoke it', danger: true, says: ['Every call with it is refused from then on. It cannot be undone.'],
    run: async () => {
      const done = await api.send('DELETE', `v1/users/${encodeURIComponent(u.name)}/tokens/${t.id}`, null);
      page.reload?.();
      return `Token ${t.id} is revoked.${behind(done)}`;
    },
  });
}

function remove(u, page) {
  confirm({
    title: `Delete ${u.name}?`, action: 'Delete it', danger: true, says: [`The user goes with its ${u.tokens.length} tokens, and every call with them is refused from then on. It cannot be undone.`],
    run: async () => {
      const done = await api.send('DELETE', `v1/users/${encodeURIComponent(u.name)}`, null);
      page.reload?.();
      return `${u.name} is deleted.${behind(done)}`;
    },
  });
}
