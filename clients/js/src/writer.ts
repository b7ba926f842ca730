import {CountdError} from './errors.js';
import {checkNames, idOf, intsOf, part, sumOf, type Id, type Int, type Ints} from './json.js';
import {newKey, type Core} from './core.js';

export interface WriterConfig {
  /** The most ops of one request, 1 to 10,000; 1,000 by default. */
  batchOps?: number;
  /** The most ops that wait in the queue, 100,000 by default. While the queue is full, add waits. */
  waitingOps?: number;
  /** For how long the writer repeats a batch after its first failure, up to an hour; 30,000 by default. */
  retryForMs?: number;
  /** Called for each op that was not counted, or may not have been. If it throws, the writer logs the error to the console. */
  onFailure?: (failure: Failure) => void;
}

const configNames: readonly (keyof WriterConfig)[] = ['batchOps', 'waitingOps', 'retryForMs', 'onFailure'];

/** An op that was not counted. If error.maybeApplied is true, it may have been counted. */
export interface Failure {
  keyspace: string;
  id: string;
  /** The sum of one or more adds. */
  add: Ints;
  error: CountdError;
}

interface Op {
  id: string;
  add: Record<string, Int>;
}

class Batch {
  readonly ops: Op[] = [];
  readonly newest = new Map<string, Op>(); // by id
  settle!: () => void;
  readonly settled = new Promise<void>(resolve => (this.settle = resolve)); // resolves once each op was counted or has failed
}

const sessionAgeMaxMs = 3_600_000; // far below the day after which a server forgets a producer

/**
 * Counts each increment of a stream once. It adds up the waiting increments of each row. As soon as the server
 * answers the previous batch of a keyspace, it sends the next one, without a timer. If an answer is lost, it sends
 * the batch again under the same number. The result is as if the increments of a row were applied one by one, even
 * at a floor. If the process dies, waiting increments are lost.
 */
export class Writer {
  readonly #core: Core;
  readonly #config: Required<Omit<WriterConfig, 'onFailure'>> & Pick<WriterConfig, 'onFailure'>;
  readonly #queues = new Map<string, Batch[]>(); // by keyspace, if it has a sender; the oldest batch comes first
  readonly #sessions = new Map<string, Session>(); // by keyspace
  readonly #unsettled = new Set<Batch>();
  #waiting = 0;
  #room: (() => void)[] = [];
  #failed: CountdError | undefined;
  #closed = false;

  constructor(core: Core, config: WriterConfig = {}) {
    checkNames(config, configNames, 'config');
    const {batchOps = 1_000, waitingOps = 100_000, retryForMs = 30_000} = config;
    if (!(batchOps >= 1 && batchOps <= 10_000)) throw new RangeError(`batchOps: ${batchOps} is not between 1 and 10,000`);
    if (!(waitingOps >= 1)) throw new RangeError(`waitingOps: ${waitingOps} is below 1`);
    if (!(retryForMs >= 0 && retryForMs <= sessionAgeMaxMs)) throw new RangeError(`retryForMs: ${retryForMs} is not between 0 and an hour`);
    this.#core = core;
    this.#config = {batchOps, waitingOps, retryForMs, onFailure: config.onFailure};
  }

  /** Queues deltas of a row. The promise is fulfilled once they are queued. flush reports whether they are counted. */
  async add(keyspace: string, id: Id, deltas: Ints): Promise<void> {
    const row = idOf(id, 'id');
    intsOf(deltas, 'add');
    part(keyspace);
    for (;;) {
      if (this.#closed) throw new Error('the writer is closed');
      if (this.#merge(keyspace, row, deltas)) return;
      if (this.#waiting < this.#config.waitingOps) break;
      await new Promise<void>(resolve => this.#room.push(resolve));
    }
    let queue = this.#queues.get(keyspace);
    if (queue === undefined) {
      this.#queues.set(keyspace, (queue = []));
      void this.#send(keyspace, queue);
    }
    let batch = queue.at(-1);
    if (batch === undefined || batch.ops.length >= this.#config.batchOps) {
      queue.push((batch = new Batch()));
      this.#unsettled.add(batch);
    }
    const op = {id: row, add: Object.assign(Object.create(null), deltas) as Op['add']};
    batch.ops.push(op);
    batch.newest.set(row, op);
    this.#waiting++;
  }

  /** Adds deltas to the newest waiting op of their row. It returns false if the sum would change the effect of floors, or would not fit. */
  #merge(keyspace: string, id: string, deltas: Ints): boolean {
    const op = this.#queues.get(keyspace)?.at(-1)?.newest.get(id);
    if (op === undefined) return false;
    const sums = Object.create(null) as Op['add'];
    for (const [column, delta] of Object.entries(deltas)) {
      const was = op.add[column] ?? 0;
      const sum = was < 0 === delta < 0 || was == 0 ? sumOf(was, delta) : undefined;
      if (sum === undefined) return false;
      sums[column] = sum;
    }
    Object.assign(op.add, sums);
    return true;
  }

  /** Waits until each earlier add is counted or has failed. It rejects with the first failure since the last flush. */
  async flush(): Promise<void> {
    await Promise.all([...this.#unsettled].map(batch => batch.settled));
    const failed = this.#failed;
    this.#failed = undefined;
    if (failed !== undefined) throw failed;
  }

  /** Refuses further adds, and flushes. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#wake();
    await this.flush();
  }

  #wake(): void {
    const room = this.#room;
    this.#room = [];
    for (const resolve of room) resolve();
  }

  // Only one batch of a keyspace is in flight, so the increments of a row keep their order.
  async #send(keyspace: string, queue: Batch[]): Promise<void> {
    await Promise.resolve(); // first, add must queue its op
    for (let batch = queue.shift(); batch !== undefined; batch = queue.shift()) {
      this.#waiting -= batch.ops.length;
      this.#wake();
      await this.#sendBatch(keyspace, batch.ops);
      this.#unsettled.delete(batch);
      batch.settle();
    }
    this.#queues.delete(keyspace);
  }

  /** Returns the producer and the number of the keyspace's next request. Servers remember a producer for a day. */
  #next(keyspace: string): Record<string, string> {
    let session = this.#sessions.get(keyspace);
    if (session === undefined || Date.now() - session.born > sessionAgeMaxMs) {
      this.#sessions.set(keyspace, (session = {producer: newKey(), born: Date.now(), seq: 0}));
    }
    return {'Countd-Producer': session.producer, 'Countd-Seq': String(++session.seq)};
  }

  async #sendBatch(keyspace: string, ops: Op[]): Promise<void> {
    const path = `/v1/counters/${part(keyspace)}/incr`;
    for (let renewed = false; ops.length > 0; ) {
      try {
        const headers = this.#next(keyspace);
        const answer = await this.#core.call({method: 'POST', path, body: {want: 'none', ops}, headers, write: true}, this.#config);
        return this.#failRefused(keyspace, ops, answer as Answer);
      } catch (e) {
        const error = e instanceof CountdError ? e : new CountdError(String(e), {maybeApplied: true}, {cause: e}); // onRetry may have thrown it
        const column = /^ops\[\d+\]\.add\.(.+)$/.exec(error.field)?.[1];
        const isOfColumn = (op: Op) => column !== undefined && column in op.add;
        if (error.status === 400 && !error.maybeApplied && ops.some(isOfColumn)) {
          for (const op of ops.filter(isOfColumn)) this.#fail(keyspace, op, error); // the server applied nothing, so the other ops can be sent again
          ops = ops.filter(op => !isOfColumn(op));
          continue;
        }
        if (error.status === 410) this.#sessions.delete(keyspace);
        if (error.status === 410 && !error.maybeApplied && !renewed) {
          renewed = true;
          continue;
        }
        for (const op of ops) this.#fail(keyspace, op, error);
        return;
      }
    }
  }

  #failRefused(keyspace: string, ops: Op[], answer: Answer): void {
    for (const {error: {code, message, field = ''}} of answer.errors ?? []) {
      const op = ops[Number(/^ops\[(\d+)\]/.exec(field)?.[1])];
      if (op !== undefined) this.#fail(keyspace, op, new CountdError(`${code}: ${message}`, {code, field}));
    }
    const unknown = [...(answer.unknown ?? [])];
    for (const op of ops) {
      if (unknown[0] !== op.id) continue;
      unknown.shift();
      this.#fail(keyspace, op, new CountdError('the sums of some rows of its shard did not fit', {maybeApplied: true}));
    }
  }

  #fail(keyspace: string, op: Op, error: CountdError): void {
    this.#failed ??= error;
    try {
      this.#config.onFailure?.({keyspace, id: op.id, add: {...op.add}, error});
    } catch (e) {
      console.error('countd: onFailure failed:', e);
    }
  }
}

interface Answer {
  errors?: {id: string; error: {code: string; message: string; field?: string}}[];
  unknown?: string[];
}

interface Session {
  producer: string;
  born: number;
  seq: number;
}
