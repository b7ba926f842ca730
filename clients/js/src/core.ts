import {CountdError, didNothing, isStored, refusalOf} from './errors.js';
import {checkNames, listOf, parse, shown, stringify} from './json.js';

const addrsMax = 16;
const timeoutMaxMs = 60_000;
const retryFirstMs = 50;
const retryMaxMs = 5_000;
// How long a try waits after its deadline for the server to report the outcome.
const graceMs = 1_000;

export interface Config {
  /** 1 to 16 servers of one cluster, such as http://10.0.0.1:7400. A call uses one until it fails, then the next. */
  addrs: string | readonly string[];
  /** The token of a user, sent as Authorization: Bearer. */
  token?: string;
  /** The deadline of one try, above 0 and up to 60,000; 5,000 by default. */
  timeoutMs?: number;
  /** For how long the client repeats a call after its first failure; 30,000 by default, 0 for no repeat. Keep it below the server's --key-horizon. */
  retryForMs?: number;
  /** Called before each repeat of a call, with the failure. */
  onRetry?: (error: CountdError, waitMs: number) => void;
  /** If set, counts beyond 2^53 - 1 are bigints. Otherwise, an answer with such a count is an error. */
  bigints?: boolean;
  /** Replaces the global fetch, for a client certificate, a proxy or a test. */
  fetch?: typeof fetch;
}

const configNames: readonly (keyof Config)[] = ['addrs', 'token', 'timeoutMs', 'retryForMs', 'onRetry', 'bigints', 'fetch'];

export interface CallOptions {
  /** Aborts the call. An aborted write may have been applied. */
  signal?: AbortSignal;
  /** Overrides Config.timeoutMs. */
  timeoutMs?: number;
  /** Overrides Config.retryForMs. */
  retryForMs?: number;
}

export const callNames: readonly (keyof CallOptions)[] = ['signal', 'timeoutMs', 'retryForMs'];

export interface ReadOptions extends CallOptions {
  /** The freshness of the read. The server's default is bounded. */
  consistency?: 'stale' | 'bounded' | 'linearizable';
  /** How old a bounded read may be; the server's default is 1,000. */
  maxStalenessMs?: number;
  /** The token of a write that the read must see. */
  token?: string;
}

export const readNames: readonly (keyof ReadOptions)[] = ['consistency', 'maxStalenessMs', 'token', ...callNames];

export interface WriteOptions extends CallOptions {
  /**
   * The Idempotency-Key, 1 to 128 bytes; by default a new UUIDv7. Set it if the caller itself may repeat the
   * write, after a crash for example: the write counts once for each key.
   */
  key?: string;
}

export const writeNames: readonly (keyof WriteOptions)[] = ['key', ...callNames];

export interface Call {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  /** The path, with escaped parts. */
  path: string;
  query?: Readonly<Record<string, string | number | boolean | undefined>>;
  body?: unknown;
  headers?: Readonly<Record<string, string>>;
  /** Whether the call changes something. If it does, errors report whether it may have been applied. */
  write?: boolean;
  /** Whether the call must not be sent twice. */
  once?: boolean;
}

/** Sends calls to the servers of one cluster. */
export class Core {
  readonly #config: Config;
  readonly #bases: readonly string[];
  #current = 0;

  constructor(config: Config) {
    checkNames(config, configNames, 'config');
    checkTimes(config);
    if (!/^[!-~]*$/.test(config.token ?? '')) throw new RangeError('token: it has characters that no token has');
    this.#config = config;
    this.#bases = listOf(typeof config.addrs === 'string' ? [config.addrs] : config.addrs, 'addrs', baseOf);
    const count = this.#bases.length;
    if (count < 1 || count > addrsMax) throw new RangeError(`addrs: a client needs 1 to ${addrsMax} addresses, not ${count}`);
  }

  /** Makes a call, with retries, and returns the answer's JSON. */
  async call(call: Call, options: CallOptions = {}): Promise<unknown> {
    checkTimes(options);
    const body = call.body === undefined ? undefined : stringify(call.body);
    let maybe = false; // an earlier try may have written
    let end = 0;
    for (let bound = retryFirstMs; ; bound = Math.min(2 * bound, retryMaxMs)) {
      let failure: CountdError | undefined;
      for (let tries = 1; ; tries++) {
        const current = this.#current;
        try {
          return await this.#try(this.#bases[current % this.#bases.length]!, call, body, options);
        } catch (e) {
          if (!(e instanceof CountdError)) throw e;
          failure = e;
        }
        maybe ||= call.write === true && !didNothing(failure);
        if (!failure.noAnswer && failure.status !== 503 && failure.status !== 502) break;
        if (this.#current === current) this.#current = current + 1; // if calls fail concurrently, only the first switches to the next server
        if (tries >= this.#bases.length || call.once || options.signal?.aborted) break;
      }
      failure.maybeApplied = maybe && !isStored(failure);
      if (call.once || !failure.retryable || options.signal?.aborted) throw failure;
      end ||= Date.now() + (options.retryForMs ?? this.#config.retryForMs ?? 30_000);
      const left = end - Date.now();
      if (left <= 0) throw failure;
      const wait = Math.min(failure.retryAfterMs + Math.random() * bound, left);
      this.#config.onRetry?.(failure, wait);
      if (!(await slept(wait, options.signal))) throw failure;
    }
  }

  async #try(base: string, call: Call, body: string | undefined, options: CallOptions): Promise<unknown> {
    const timeout = options.timeoutMs ?? this.#config.timeoutMs ?? 5_000;
    const headers: Record<string, string> = {...call.headers, 'Countd-Timeout': `${timeout}ms`};
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    if (this.#config.token !== undefined) headers['Authorization'] = `Bearer ${this.#config.token}`;
    const late = AbortSignal.timeout(timeout + graceMs);
    let answer: Response;
    let text: string;
    try {
      answer = await (this.#config.fetch ?? fetch)(base + call.path + queryOf(call.query), {
        method: call.method, headers, body: body ?? null, redirect: 'manual',
        signal: options.signal ? AbortSignal.any([options.signal, late]) : late,
      });
      text = await answer.text();
    } catch (e) {
      throw new CountdError(options.signal?.aborted ? 'the call was aborted' : `no answer from ${base}: ${causeOf(e)}`, {noAnswer: true, unsent: isUnsent(e)}, {cause: e});
    }
    if (!answer.ok) throw refusalOf(answer.status, answer.headers, text);
    try {
      return parse(text, this.#config.bigints === true);
    } catch (e) {
      throw e instanceof CountdError ? e : new CountdError(`cannot read the answer of ${call.method} ${base}${call.path}`, {}, {cause: e});
    }
  }
}

function checkTimes({timeoutMs, retryForMs}: Pick<CallOptions, 'timeoutMs' | 'retryForMs'>): void {
  if (timeoutMs !== undefined && !(typeof timeoutMs === 'number' && timeoutMs > 0 && timeoutMs <= timeoutMaxMs)) {
    throw new RangeError(`timeoutMs: ${shown(timeoutMs)} is not above 0 and at most ${timeoutMaxMs}`);
  }
  if (retryForMs !== undefined && !(typeof retryForMs === 'number' && retryForMs >= 0)) throw new RangeError(`retryForMs: ${shown(retryForMs)} is not 0 or more`);
}

/** Whether Node's fetch failed before it had a connection. */
function isUnsent(e: unknown): boolean {
  const cause = (e as {cause?: {code?: string; syscall?: string; errors?: {syscall?: string}[]}} | undefined)?.cause;
  const calls = [cause?.syscall, ...(cause?.errors ?? []).map(each => each.syscall)];
  return calls.some(call => call === 'connect' || call === 'getaddrinfo') || cause?.code === 'UND_ERR_CONNECT_TIMEOUT';
}

function causeOf(e: unknown): string {
  if (!(e instanceof Error)) return String(e);
  return e.cause instanceof Error ? `${e.message}: ${e.cause.message}` : e.message;
}

function baseOf(addr: string, field: string): string {
  const text = typeof addr === 'string' && !addr.includes('://') ? `http://${addr}` : addr;
  const url = typeof addr === 'string' && URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.pathname !== '/' || url.search !== '' || url.username !== '') {
    throw new TypeError(`${field}: ${shown(addr)} is not of the form http://host:port`);
  }
  if (!addr.includes('://') && url.port === '') url.port = '7400';
  return url.origin;
}

function queryOf(query: Call['query']): string {
  const set = Object.entries(query ?? {}).filter(([, v]) => v !== undefined && v !== '');
  return set.length === 0 ? '' : `?${new URLSearchParams(set.map(([k, v]) => [k, String(v)]))}`;
}

/** Waits. It returns false if the signal aborts the wait. */
function slept(ms: number, signal: AbortSignal | undefined): Promise<boolean> {
  return new Promise(resolve => {
    if (signal?.aborted) return resolve(false);
    const end = () => {
      clearTimeout(timer);
      resolve(false);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', end);
      resolve(true);
    }, ms);
    signal?.addEventListener('abort', end, {once: true});
  });
}

/** Returns the header of a key. It throws a RangeError if some client or proxy would change the key. */
export function keyed(key = newKey()): Record<string, string> {
  if (!/^[!-~]([ -~]{0,126}[!-~])?$/.test(key)) throw new RangeError(`key: ${JSON.stringify(key)} is not 1 to 128 printable ASCII characters without spaces around`);
  return {'Idempotency-Key': key};
}

/** Returns a new Idempotency-Key: a UUIDv7. By its time, a server that has forgotten the key can refuse it. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const now = Date.now(), view = new DataView(bytes.buffer);
  view.setUint32(0, Math.floor(now / 0x10000));
  view.setUint16(4, now % 0x10000);
  bytes[6] = (bytes[6]! & 0x0f) | 0x70;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, b => b.toString(16).padStart(2, '0')).join('');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
