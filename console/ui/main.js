// The frame of the pages: header, routes, sign-in, and the notice that the node does not answer.
import * as api from './api.js';
import {clock, confirm, draw, field, h} from './dom.js';
import {identify, may, notify, onChange, readKeyspaces, repeat, signedOut, start, state} from './state.js';
import {homePage} from './home.js';
import {keyspacesPage} from './keyspaces.js';
import {rowPage} from './row.js';
import {hotPage} from './hot.js';
import {runbookPage} from './runbook.js';
import {userPage} from './user.js';
import {sourcesPage} from './sources.js';
import {operatePage} from './operate.js';

// A page is {title, render, load, every, drawn}. render returns its elements from the loaded data. load calls the API,
// and runs again every `every` ms. drawn runs once the page is shown.
const pages = {
  home: {name: 'Home', make: homePage},
  keyspaces: {name: 'Keyspaces', make: keyspacesPage},
  row: {name: 'Row', make: rowPage},
  hot: {name: 'Hot now', make: hotPage},
  user: {name: 'User', make: userPage},
  sources: {name: 'Sources', make: sourcesPage, needs: 'admin'},
  operate: {name: 'Operate', make: operatePage, needs: 'admin'},
  runbook: {name: 'Runbook', make: runbookPage},
};

const allowed = name => !pages[name].needs || may(pages[name].needs);

const main = document.getElementById('main');
let current = {name: '', page: null, stop: () => {}};

function route() {
  const [name = '', ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  return {name: pages[name] ? name : 'home', rest};
}

function open() {
  current.stop();
  const {name, rest} = route();
  const page = pages[name].make(...rest);
  current = {name, page, stop: () => {}};
  document.title = `${page.title} · countd`;
  main.replaceChildren();
  render();
  if (page.load) {
    const load = async () => {
      if (state.who === null || state.down !== null || signedOut() || !allowed(name)) return;
      await page.load();
      if (current.page === page) render();
    };
    current.stop = repeat(page.every ?? 2000, load);
    page.reload = load;
  }
  page.drawn?.(main);
  if (opened) main.focus({preventScroll: true});
  opened = true;
  scrollTo(0, 0);
}

let opened = false;

function render() {
  draw(document.getElementById('header'), header());
  draw(document.getElementById('banner'), banner());
  draw(document.getElementById('footer'), footer());
  const {page, name} = current;
  main.classList.toggle('stale', state.down !== null);
  if (state.who === null) draw(main, h('p', {class: 'muted'}, state.down === null ? 'Asking the node …' : 'The node does not answer.'));
  else if (signedOut()) draw(main, signInPage());
  else if (!allowed(name)) draw(main, h('h1', null, page.title), h('p', null, `Only a user with the role ${pages[name].needs} sees this page.`));
  else draw(main, page.render());
}

function header() {
  const shown = Object.entries(pages).filter(([name]) => allowed(name));
  return [
    h('a', {class: 'brand', href: '#/home'}, h('span', {class: 'logo', 'aria-hidden': 'true'}), h('strong', null, 'countd'), state.nodes?.cluster_name && h('span', {class: 'muted'}, state.nodes.cluster_name)),
    !signedOut() && h('nav', {'aria-label': 'Pages'}, shown.map(([name, p]) => h('a', {href: `#/${name}`, 'aria-current': current.name === name && 'page'}, p.name))),
    who(),
  ];
}

function who() {
  if (!state.who || state.who.auth === 'off') return null;
  if (!api.hasToken()) return h('button', {type: 'button', class: 'small who', onclick: askToken}, 'Sign in');
  return h('div', {class: 'who'}, h('span', null, state.who.user), h('button', {type: 'button', class: 'small', onclick: () => { api.signIn(''); identify().catch(() => {}); }}, 'Sign out'));
}

function signInPage() {
  return [h('h1', null, 'Sign in'),
    h('p', null, 'This node asks for a token: ', h('code', null, '--auth enforce'), '. A token with the role admin may operate the cluster, one with metrics sees its state, and one with reader looks up rows.'),
    h('p', {class: 'muted'}, 'The token stays in the memory of this page only. A reload forgets it.'),
    h('button', {type: 'button', class: 'primary', onclick: askToken}, 'Sign in')];
}

function askToken() {
  confirm({
    title: 'Sign in', action: 'Sign in',
    fields: [field('Token', h('input', {name: 'token', type: 'password', autocomplete: 'off', required: true, spellcheck: 'false'}), 'From countctl token create, or the root token.')],
    run: async ({token}) => {
      api.signIn(token.trim());
      try {
        await identify();
      } catch (failure) {
        api.signIn('');
        throw failure;
      }
      return `Signed in as ${state.who.user}.`;
    },
  });
}

// The notice while the page's own node does not answer.

const moveAfter = 10_000;
let stays = false;

/** Returns the other nodes that were alive at this node's last answer, with the addresses of their consoles. */
function others() {
  return (state.nodes?.nodes ?? []).filter(n => n.id !== state.own && n.answers && !n.not_ready && n.http_addr)
    .map(n => ({id: n.id, href: `${location.protocol}//${n.http_addr}/ui/${location.hash}`}));
}

/** Reports whether the browser reaches the node without a proxy. Then it can reach the other nodes too. */
const isDirect = () => location.pathname.startsWith('/ui') && state.nodes?.nodes.some(n => n.id === state.own && n.http_addr === location.host);

function banner() {
  if (state.down === null) {
    stays = false;
    return state.failure && state.who && h('div', {class: 'banner warn'}, h('p', null, 'The state of the cluster cannot be read. ', state.failure.message));
  }
  const all = others(), left = Math.ceil((state.down + moveAfter - Date.now()) / 1000);
  const moves = isDirect() && all.length > 0 && !stays && !document.querySelector('dialog');
  if (moves && left <= 0) {
    stays = true; // once
    location.assign(all[0].href);
  }
  return h('div', {class: 'banner bad'},
    h('p', null, h('strong', null, `${state.own || 'The node of this page'} does not answer`), ` since ${clock(state.down)}. What you see is from before.`),
    all.length > 0
      ? h('p', null, 'These answered last: ', all.map((n, i) => [i > 0 && ' · ', h('a', {href: n.href}, `open the console of ${n.id}`)]))
      : h('p', null, 'No other node is known here. The page goes on trying.'),
    moves && h('p', null, h('span', {'aria-hidden': 'true'}, `Opening ${all[0].id} in ${Math.max(left, 0)} s. `), h('button', {type: 'button', class: 'small', onclick: () => { stays = true; notify(); }}, 'Stay here')));
}

function footer() {
  const parts = [
    state.own && `Answered by ${state.own}`, state.nodes && `as of ${clock(state.nodes.at)}`, state.version && `cluster version ${state.version.version}`,
    state.who && state.who.auth !== 'enforce' && h('a', {href: '../openapi.yaml'}, 'API'), h('a', {href: 'uPlot.LICENSE.txt'}, 'Graphs: uPlot, MIT'),
  ];
  return h('p', {class: 'muted'}, parts.filter(Boolean).map((part, i) => [i > 0 && ' · ', part]));
}

async function refresh() {
  if (!signedOut()) await readKeyspaces().catch(() => {});
  current.page.reload?.();
}

addEventListener('hashchange', open);
addEventListener('identified', refresh); // a page loads nothing until the caller is known
onChange(() => render());
open();
start();
repeat(1000, () => { if (state.down !== null) render(); });
repeat(30_000, async () => { if (state.who && !signedOut()) await readKeyspaces().catch(() => {}); });
