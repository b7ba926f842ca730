import type {components} from './api.js';

/** The codes of the API; later servers may have more. */
export type Code = components['schemas']['Code'] | (string & {});

/** A call that did not succeed. */
export class CountdError extends Error {
  override readonly name = 'CountdError';
  /** HTTP status of the refusal; 0 if no server answered. */
  readonly status: number = 0;
  /** The code of the error, such as invalid_argument; '' if the answer is not countd's. */
  readonly code: Code = '';
  /** The invalid field of the request, such as ops[3].id; '' for none. */
  readonly field: string = '';
  /** The pause before a retry that the server asks for. */
  readonly retryAfterMs: number = 0;
  /** The ids of ops that were applied, for a write over several shards. */
  readonly applied: readonly string[] = [];
  /** The ids of ops that may have been applied, for a write over several shards. */
  readonly unknown: readonly string[] = [];
  /** The indexes, in the request, of the ops whose ids are in applied. */
  readonly appliedOps: readonly number[] = [];
  /** The indexes, in the request, of the ops whose ids are in unknown. */
  readonly unknownOps: readonly number[] = [];
  /**
   * Whether the write may have been applied. It still counts once if the caller repeats it with the same key. If
   * this is false, nothing of the write was applied.
   */
  maybeApplied = false;

  constructor(message: string, fields?: Partial<Omit<CountdError, keyof Error | 'retryable'>>, options?: ErrorOptions) {
    super(message, options);
    Object.assign(this, fields);
  }

  /** Whether the same call may succeed later. */
  get retryable(): boolean {
    return this.noAnswer || [408, 429, 502, 503, 504].includes(this.status);
  }

  /** Whether no server answered. */
  noAnswer = false;
  /** Whether no connection was made. @internal */
  readonly unsent: boolean = false;
}

/** Returns the error in an answer whose status is not 2xx. */
export function refusalOf(status: number, headers: Headers, body: string): CountdError {
  const retryAfterMs = retryAfter(headers.get('Retry-After'));
  try {
    const answer = JSON.parse(body) as {error: {code: unknown; message: string; field?: string}} & Record<string, unknown>;
    const {code, message, field = ''} = answer.error;
    if (typeof code === 'string' && code !== '') {
      return new CountdError(`${code} (${status}): ${message}`, {
        status, code, field, retryAfterMs,
        applied: (answer['applied'] as string[]) ?? [], unknown: (answer['unknown'] as string[]) ?? [],
        appliedOps: (answer['applied_ops'] as number[]) ?? [], unknownOps: (answer['unknown_ops'] as number[]) ?? [],
      });
    }
  } catch {
    // The answer is not countd's. It may be a proxy's.
  }
  const text = body.replace(/\s+/g, ' ').trim().slice(0, 200) || 'the answer has no text';
  return new CountdError(`${status}: ${text}`, {status, retryAfterMs});
}

function retryAfter(value: string | null): number {
  if (value === null) return 0;
  if (/^[0-9]{1,9}$/.test(value)) return Number(value) * 1000;
  return Math.max(0, (Date.parse(value) || 0) - Date.now());
}

/** Whether a try that failed with this error certainly wrote nothing. */
export function didNothing(e: CountdError): boolean {
  if (e.noAnswer || e.applied.length + e.unknown.length > 0) return e.unsent;
  if (e.status === 408 || e.status === 503) return e.code !== ''; // from countd itself, not from a proxy
  return e.status >= 400 && e.status < 500;
}

const conflicts: readonly Code[] = ['idempotency_conflict', 'keyspace_exists', 'refused', ''];

/**
 * Whether a column refused every op of the write. The server stores such a refusal under the write's key, so it is also
 * valid for earlier tries. It is any 409 that is not a conflict.
 */
export function isStored(e: CountdError): boolean {
  return e.status === 409 && !conflicts.includes(e.code);
}
