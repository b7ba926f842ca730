// A small site: posts with counts and likes, a home timeline, an unread badge, views in batches.
//
//     node site.mjs 8000 127.0.0.1:7400 …
//
// docs/GUIDE.md walks through it. `?as=7` takes the place of a login; COUNTD_TOKEN is the site's own token for countd.
import {createServer} from 'node:http';
import {Countd, CountdError} from '../../clients/js/dist/esm/index.js'; // with an installed package: 'countd'

const [port, ...addrs] = process.argv.slice(2);
// A page gives up within seconds; without these settings, the client repeats a call for 30 s.
const db = Countd.open({addrs, token: process.env.COUNTD_TOKEN, timeoutMs: 1_000, retryForMs: 1_000});
const lost = ({id, add, error}) => console.error(`lost ${add.view} views of post ${id}: ${error.message}`);
const views = db.writer({retryForMs: 10_000, onFailure: lost}); // sums views in memory, and sends them as fast as the server answers

// Ids begin with the current second, so that old posts are neighbours and can move to disk. One process makes no id twice.
let made = Math.floor(Math.random() * 2 ** 22);
function newPostId() {
  const second = BigInt(Math.floor(Date.now() / 1000) - 515483463);
  return (second << 22n) | BigInt(made++ % 2 ** 22);
}

async function publish(me) {
  const post = newPostId();
  await db.addPost(me, post);
  return {id: String(post)};
}

async function show(me, post) {
  await views.add('posts', post, {view: 1});
  const [row] = await db.getMany('posts', [post], {member: me});
  return {counts: row.counts, liked: row.member.like};
}

async function like(me, author, post) {
  const r = await db.addMember('posts', 'like', post, me);
  if (r.changed || r.duplicate) {
    // The key makes the notice count once, even if this call is repeated, or the user taps several times within ten minutes.
    await db.incrUnread([{user: author, add: {like: 1}}], {key: `like ${post} ${me}`});
  }
  return {likes: r.count};
}

async function unlike(me, author, post) {
  return {likes: (await db.removeMember('posts', 'like', post, me)).count};
}

async function follow(me, author) {
  return {unread: (await db.follow(me, [author])).unread};
}

// The newest posts of the user's followees, with counts and the user's likes, in one call. It marks them as seen.
async function home(me) {
  const {posts} = await db.timeline(me, {counts: 'posts', member: ['like']});
  for (const {id} of posts) await views.add('posts', id, {view: 1});
  if (posts.length > 0) await db.resetFeedUpTo(me, posts[0].id);
  return posts.map(({id, author, counts, member}) => ({id, author, counts, liked: member.like}));
}

async function badge(me) {
  const poll = await db.poll(me);
  return {likes: poll.unread.like, posts: poll.feed};
}

// Subtracts the numbers that the user was shown, so that a like that came meanwhile stays.
async function seen(me, likes) {
  return {likes: (await db.resetUnread(me, {seen: {like: Number(likes)}})).counts.like};
}

const routes = [
  ['POST', /^\/posts$/, publish], ['GET', /^\/posts\/(\d+)$/, show],
  ['POST', /^\/users\/(\d+)\/posts\/(\d+)\/like$/, like], ['DELETE', /^\/users\/(\d+)\/posts\/(\d+)\/like$/, unlike],
  ['POST', /^\/users\/(\d+)\/follow$/, follow], ['GET', /^\/home$/, home], ['GET', /^\/badge$/, badge], ['POST', /^\/badge\/seen\/(\d+)$/, seen],
];

async function serve(request, response) {
  const [path, query] = request.url.split('?');
  const me = new URLSearchParams(query).get('as') ?? '';
  const route = routes.find(([method, form]) => method === request.method && form.test(path));
  let status = 200, answer;
  try {
    if (route === undefined) [status, answer] = [404, {error: 'no such page'}];
    else answer = await route[2](me, ...route[1].exec(path).slice(1));
  } catch (e) {
    status = e instanceof RangeError || e.code === 'invalid_argument' ? 400 : e instanceof CountdError && e.retryable ? 503 : 500;
    answer = {error: e.message};
  }
  response.writeHead(status).end(JSON.stringify(answer) + '\n');
}

const server = createServer(serve).listen(Number(port), '127.0.0.1');
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.once(signal, async () => {
    server.close();
    await views.close().catch(() => {}); // counts the views that still wait; lost has reported the others
    process.exit();
  });
}
