// JSON whose whole numbers keep their value. JSON.parse rounds those beyond 2^53, and ids and counts have 64 bits:
// such a number becomes a BigInt here.

const mark = '\u0001int:';
const quotedMark = /"\\u0001int:(-?[0-9]+)"/g;
// Strings and fractions match whole, so that digits inside them stay as they are.
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

/** Returns text as a whole number of 64 bits with a sign, or undefined. */
export function intOf(text) {
  if (!/^-?[0-9]{1,19}$/.test(text)) return undefined;
  const n = BigInt(text);
  return n >= -(2n ** 63n) && n < 2n ** 63n ? n : undefined;
}
