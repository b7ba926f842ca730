import {CountdError} from './errors.js';

// JSON that keeps the value of whole numbers. JSON.parse and JSON.stringify round those beyond 2^53.

/** A delta, a count to set or a floor. A number must be whole and at most 2^53 - 1 on either side of 0. */
export type Int = number | bigint;

/**
 * The id of a row, user, post or member: 0 to 2^64 - 1 or, in a keyspace with text ids, a text of 1 to 128 bytes of UTF-8.
 * A number must be at most 2^53 - 1.
 */
export type Id = string | number | bigint;

const mark = '\u0001int:';
const quotedMark = /"\\u0001int:(-?[0-9]+)"/g;
// The expression matches strings and fractions as a whole, so that digits inside them do not change.
const token = /"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*/g;
const int64Max = 2n ** 63n - 1n;

/** Parses JSON. If bigints is set, a whole number beyond 2^53 - 1 becomes a bigint; otherwise parse throws. */
export function parse(text: string, bigints: boolean): unknown {
  let found = false;
  const marked = text.replace(token, token => {
    if (token.length < 16 || !/^-?[0-9]+$/.test(token) || Number.isSafeInteger(Number(token))) return token;
    if (!bigints) {
      throw new CountdError(`the answer has the number ${token}, which is beyond 2^53 - 1: make the client with bigints: true`);
    }
    found = true;
    return `"\\u0001int:${token}"`;
  });
  if (!found) return JSON.parse(marked);
  return JSON.parse(marked, (_, v: unknown) => (typeof v === 'string' && v.startsWith(mark) ? BigInt(v.slice(mark.length)) : v));
}

/** Returns a value as JSON, and a bigint as a JSON number. */
export function stringify(value: unknown): string {
  return JSON.stringify(value, (_, v: unknown) => (typeof v === 'bigint' ? mark + v : v)).replace(quotedMark, '$1');
}

/** Returns an id as a string. It throws a RangeError or TypeError for a value that no keyspace takes. */
export function idOf(id: Id, field: string): string {
  if (typeof id === 'number' && id >= 2 ** 53) throw new RangeError(`${field}: ${id} is beyond 2^53 - 1, where numbers are not exact: pass the id as a string or a bigint`);
  if (typeof id !== 'number' && typeof id !== 'string' && typeof id !== 'bigint') throw new TypeError(`${field}: ${shown(id)} is not a string, a number or a bigint`);
  const text = String(id);
  if (typeof id === 'string') {
    if (text === '' || text.startsWith(mark) || /\p{Surrogate}/u.test(text) || new TextEncoder().encode(text).length > 128) {
      throw new RangeError(`${field}: ${shown(id)} is not a text of 1 to 128 bytes of UTF-8`);
    }
  } else if (!/^(0|[1-9][0-9]{0,19})$/.test(text) || BigInt(text) >= 2n ** 64n) {
    throw new RangeError(`${field}: ${shown(id)} is not a whole number from 0 to 2^64 - 1`);
  }
  return text;
}

/** Returns an id as a part of a path. */
export function idPart(id: Id, field: string): string {
  return part(idOf(id, field));
}

/** Returns value if it is a whole number of 64 bits. Otherwise it throws a RangeError. */
export function intOf(n: Int, field: string): Int {
  if (typeof n !== 'number' && typeof n !== 'bigint') throw new TypeError(`${field}: ${shown(n)} is not a number or a bigint`);
  if (typeof n === 'number' && Math.abs(n) >= 2 ** 53) throw new RangeError(`${field}: ${n} is beyond 2^53 - 1, where numbers are not exact: pass it as a bigint`);
  if (typeof n === 'bigint' ? n > int64Max || n < -int64Max - 1n : !Number.isInteger(n)) throw new RangeError(`${field}: ${n} is not a whole number of 64 bits`);
  return n;
}

/** A number for each column. */
export type Ints = Readonly<Record<string, Int>>;

/** Checks each number of some columns. */
export function intsOf(ints: Ints, field: string): Ints {
  if (!isObject(ints)) throw new TypeError(`${field}: ${shown(ints)} is not an object of numbers by column`);
  const columns = Object.entries(ints);
  if (columns.length === 0) throw new RangeError(`${field}: no column`);
  for (const [column, n] of columns) intOf(n, `${field}.${column}`);
  return ints;
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Returns an invalid value as error messages show it. */
export function shown(value: unknown): string {
  if (typeof value !== 'object' && typeof value !== 'string') return String(value);
  return stringify(value).slice(0, 80);
}

export function checkObject(value: unknown, field: string): void {
  if (!isObject(value)) throw new TypeError(`${field}: ${shown(value)} is not an object`);
}

/** Throws a TypeError if an object has an unknown property. Otherwise a misspelled property would be ignored. */
export function checkNames(o: object, names: readonly string[], what: string, prefix = '', kind = 'option'): void {
  checkObject(o, what);
  for (const name of Object.keys(o)) {
    if (!names.includes(name)) throw new TypeError(`${prefix}${name}: there is no such ${kind}; there are ${names.join(', ')}`);
  }
}

/** Returns the items of an array, each converted by its form. */
export function listOf<T, R>(items: readonly T[], field: string, form: (item: T, field: string) => R): R[] {
  if (!Array.isArray(items)) throw new TypeError(`${field}: ${shown(items)} is not an array`);
  return items.map((item: T, i) => form(item, `${field}[${i}]`));
}

/** Returns value if it is a single name. Otherwise it throws a TypeError. */
export function nameOf(name: string, field: string): string {
  if (typeof name !== 'string' || name === '' || name.includes(',')) throw new TypeError(`${field}: ${shown(name)} is not a name`);
  return name;
}

/** Escapes a part of a path. */
export function part(name: string): string {
  if (typeof name !== 'string' || name === '') throw new TypeError(`${shown(name)} is not a name, such as 'posts'`);
  return encodeURIComponent(name);
}

/** Returns the sum of two numbers, or undefined if it does not fit 64 bits. */
export function sumOf(a: Int, b: Int): Int | undefined {
  if (typeof a === 'number' && typeof b === 'number' && Number.isSafeInteger(a + b)) return a + b;
  const sum = BigInt(a) + BigInt(b);
  return sum > int64Max || sum < -int64Max - 1n ? undefined : sum;
}
