// JSON that keeps the value of whole numbers. Ids and counts have 64 bits, and JSON.parse rounds numbers beyond 2^53.
// Here such a number becomes a BigInt.

const mark = '\u0001int:';
const quotedMark = /"\\u0001int:(-?[0-9]+)"/g;
// Matches whole strings and fractions, so that digits inside them do not change.
const token = /"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*/g;

export function parse(source) {
  let found = false;
  const marked = source.replace(token, token => {
    if (token.length < 16 || !/^-?[0-9]+$/.test(token) || Number.isSafeInteger(Number(token))) return token;
    found = true;
    return `"\\u0001int:${token}"`;
  });
  if (!found) return JSON.parse(marked);
  return JSON.parse(marked, (_, v) => (typeof v === 'string' && v.startsWith(mark) ? BigInt(v.slice(mark.length)) : v));
}

export function stringify(value) {
  return JSON.stringify(value, (_, v) => (typeof v === 'bigint' ? mark + v : v)).replace(quotedMark, '$1');
}

/** Reports whether text is an id: a whole number from 0 to 2^64 - 1, in its only spelling. */
export function isID(text) {
  return /^(0|[1-9][0-9]{0,19})$/.test(text) && BigInt(text) < 2n ** 64n;
}

/** Returns text as a signed whole number of 64 bits, or undefined. */
export function intOf(text) {
  if (!/^-?[0-9]{1,19}$/.test(text)) return undefined;
  const n = BigInt(text);
  return n >= -(2n ** 63n) && n < 2n ** 63n ? n : undefined;
}
