// One user: unread numbers, and the timeline.
import * as api from './api.js';
import {copyable, failed, field, h, num, table} from './dom.js';
import {isID} from './json.js';

const postsOfPage = 20;

export function userPage(id = '') {
  const page = {title: id ? `User ${id}` : 'User', every: 3000};
  let names, parts = {}, posts, more = false;

  // Each part can fail alone: the caller may have a grant on one keyspace only.
  async function read(name, path) {
    parts[name] = {path, ...await api.get(path).then(value => ({value}), failure => ({failure}))};
  }

  page.load = async () => {
    if (!id) return;
    const list = async path => (await api.get(path).catch(() => null)) ?? {};
    names ??= {channels: ((await list('v1/notices')).channels ?? []).map(c => c.name), dots: ((await list('v1/dots')).dots ?? []).map(d => d.name)};
    const query = [names.channels.length && `channels=${names.channels.slice(0, 63).join()}`, names.dots.length && `dots=${names.dots.slice(0, 63).join()}`].filter(Boolean).join('&');
    await Promise.all([
      read('poll', `v1/poll/${id}${query && `?${query}`}`),
      read('feed', `v1/feed/${id}/unread?detail=true`),
      read('followees', `v1/feed/${id}/followees?limit=20`),
      more ? null : read('timeline', `v1/timeline/${id}?counts=posts&limit=${postsOfPage}`),
    ]);
    if (!more) posts = parts.timeline.value;
  };

  async function nextPosts() {
    more = true;
    const next = await api.get(`v1/timeline/${id}?counts=posts&limit=${postsOfPage}&cursor=${encodeURIComponent(posts.cursor)}`);
    posts = {...next, posts: [...posts.posts, ...next.posts]};
    page.reload();
  }

  const card = (title, name, shown) => h('section', {class: 'card', 'aria-label': title}, h('h2', null, title),
    parts[name]?.failure ? failed(parts[name].failure) : parts[name] ? shown(parts[name].value) : h('p', {class: 'muted'}, 'Asking the node …'),
    parts[name] && copyable(api.curl(parts[name].path), `curl: ${title}`));

  page.render = () => [h('h1', null, 'User'), lookUp(id), id && [
    h('div', {class: 'cards'},
      card('Unread numbers', 'poll', p => h('dl', {class: 'counts'}, Object.entries(p.unread).map(([c, n]) => h('div', {key: c}, h('dt', null, c), h('dd', {'data-unread': c}, num(n)))))),
      card('Notices and dots', 'poll', p => [
        table('Notices', [{name: 'Channel'}, {name: 'Unread', num: true}], Object.entries(p.notices ?? {}).map(([c, n]) => [c, h('span', {'data-notices': c}, num(n))]), 'There is no channel.'),
        table('Dots', [{name: 'Dot'}, {name: 'Shows'}], Object.entries(p.dots ?? {}).map(([d, show]) => [d, show ? 'yes' : 'no']), 'There is no dot.'),
      ]),
      card('Feed', 'feed', f => [
        h('dl', {class: 'counts'}, h('div', null, h('dt', null, 'unread posts'), h('dd', {'data-feed': id}, num(f.unread)))),
        table('Unread by author', [{name: 'Author'}, {name: 'Unread', num: true}], Object.entries(f.followees ?? {}).slice(0, 20).map(([a, n]) => [h('a', {href: `#/user/${a}`}, a), num(n)]), 'No author has unread posts.'),
      ]),
      card('Follows', 'followees', f => [
        f.followees.length > 0 ? h('p', {class: 'links'}, f.followees.map(a => [h('a', {href: `#/user/${a}`}, a), ' '])) : h('p', {class: 'muted'}, 'Nobody that the feed knows.'),
        f.cursor && h('p', {class: 'muted'}, 'The first 20.'),
      ])),
    card('Timeline', 'timeline', () => [
      table('Timeline', [{name: 'Post'}, {name: 'Author'}, {name: 'Counts'}], (posts?.posts ?? []).map(p => [h('a', {href: `#/row/posts/${p.id}`, 'data-post': p.id}, p.id), h('a', {href: `#/user/${p.author}`}, p.author),
        Object.entries(p.counts ?? {}).map(([c, n]) => `${num(n)} ${c}`).join(', ')]), 'No posts.'),
      posts?.cursor && h('button', {type: 'button', onclick: nextPosts}, 'More'),
    ]),
  ]];
  return page;
}

function lookUp(id) {
  return h('form', {class: 'look', key: `look ${id}`, onsubmit: e => {
    e.preventDefault();
    const user = new FormData(e.target).get('user');
    if (isID(user)) location.hash = `#/user/${user}`;
    else e.target.querySelector('small').textContent = 'Not an id: a whole number up to 18446744073709551615, without zeros in front.';
  }},
  field('User', h('input', {name: 'user', required: true, inputmode: 'numeric', autocomplete: 'off', pattern: '[0-9]{1,20}', value: id}), ' '),
  h('button', {type: 'submit', class: 'primary'}, 'Look up'));
}
