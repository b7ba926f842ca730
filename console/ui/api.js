// Calls of the API, at addresses relative to the page's own. The token is in this module's memory only, so a reload
// loses it.
import {parse, stringify} from './json.js';

let token = '';

/** A failure of a call. code is a code of the API, or no_answer. */
export class Failure extends Error {
  constructor(status, code, message, field) {
    super(message);
    this.status = status;
    this.code = code;
    this.field = field;
  }
}

export function signIn(secret) { token = secret; }
export function hasToken() { return token !== ''; }

/** Returns the absolute address of a path of the API, for people to copy. */
export function addressOf(path) { return new URL(`../${path}`, location.href.split('#')[0]).href; }

/** Returns the text of an answer, or throws a Failure. */
async function ask(method, path, {body, timeout = 5000, headers = {}} = {}) {
  const had = token;
  let answer, text;
  try {
    answer = await fetch(`../${path}`, {
      method,
      headers: {
        ...headers,
        ...(method === 'GET' ? {} : {'Content-Type': 'application/json'}), // the API requires it for changes by pages
        ...(had ? {Authorization: `Bearer ${had}`} : {}),
      },
      body: body === undefined || body === null ? undefined : stringify(body),
      signal: AbortSignal.timeout(timeout),
      cache: 'no-store', credentials: 'omit', redirect: 'error',
    });
    text = await answer.text();
  } catch {
    throw new Failure(0, 'no_answer', 'the node does not answer');
  }
  if (answer.ok) return text;
  let fault;
  try {
    fault = parse(text).error;
  } catch {
    throw new Failure(answer.status, 'no_answer', `something in front of the node answers ${answer.status}`);
  }
  if (answer.status === 401 && had && had === token) {
    token = '';
    dispatchEvent(new Event('signed-out'));
  }
  throw new Failure(answer.status, fault.code, fault.message, fault.field);
}

export const text = (path, options) => ask('GET', path, options);
export const get = async (path, options) => parse(await ask('GET', path, options));
export const send = async (method, path, body = {}, options = {}) => parse(await ask(method, path, {body, ...options}));

/** Sends a write of rows under a new key. While the outcome is unknown, it sends the write again; it counts once. */
export async function write(path, body) {
  const key = [...crypto.getRandomValues(new Uint8Array(16))].map(b => b.toString(16).padStart(2, '0')).join('');
  for (let tries = 1; ; tries++) {
    try {
      return await send('POST', path, body, {headers: {'Idempotency-Key': key}});
    } catch (failure) {
      const unknown = failure.code === 'no_answer' || failure.code === 'outcome_unknown';
      if (!unknown || tries === 3) throw failure;
      await new Promise(done => setTimeout(done, 500 * tries));
    }
  }
}

/** Quotes text for a shell, because a link may put any text into the path. */
const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

/** Returns the curl command of a call. */
export function curl(path, {method = 'GET', body, write = false} = {}) {
  const parts = ['curl'];
  if (method !== 'GET' && !(method === 'POST' && body !== undefined)) parts.push(`-X ${method}`);
  if (token) parts.push('-H "Authorization: Bearer $COUNTD_TOKEN"');
  if (write) parts.push('-H "Idempotency-Key: $(uuidgen)"');
  parts.push(quoted(addressOf(path)));
  if (body !== undefined) parts.push(`-d ${quoted(stringify(body))}`);
  return parts.join(' ');
}
