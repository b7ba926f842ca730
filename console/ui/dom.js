// Elements. When a page is drawn again, it keeps unchanged parts: focus, text in fields, open details.

const svgTags = new Set(['svg', 'rect', 'path', 'circle', 'title']);

/** Makes an element. A property that begins with "on" is a handler. It omits false, null and undefined. */
export function h(tag, props, ...children) {
  const inSVG = svgTags.has(tag);
  const e = inSVG ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name === 'key' || name === 'keep') e[name] = value;
    else if (name.startsWith('on')) (e.handlers ??= {})[name] = e[name] = value;
    else e.setAttribute(name, value === true ? '' : value);
  }
  e.append(...nodesOf(children));
  return e;
}

function nodesOf(children) {
  return children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false).map(c => (c instanceof Node ? c : String(c)));
}

/** Makes the children of an element equal to the given ones. */
export function draw(into, ...children) {
  const next = document.createDocumentFragment();
  next.append(...nodesOf(children));
  next.normalize();
  morphChildren(into, next);
}

function morphChildren(old, next) {
  const keyed = new Map([...old.childNodes].filter(n => n.key !== undefined).map(n => [n.key, n]));
  let at = old.firstChild;
  for (const n of [...next.childNodes]) {
    const same = n.key === undefined ? at : keyed.get(n.key);
    if (!same || !alike(same, n)) {
      old.insertBefore(n, at);
      continue;
    }
    if (same !== at) old.insertBefore(same, at);
    else at = at.nextSibling;
    morph(same, n);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

const alike = (a, b) => a.nodeName === b.nodeName && a.key === b.key;

// The element keeps what the user changes: whether details are open, and the text of fields.
const ofReader = new Set(['open', 'value', 'selected', 'checked']);

function morph(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  if (old.keep) return;
  for (const {name} of [...old.attributes]) if (!next.hasAttribute(name) && !ofReader.has(name)) old.removeAttribute(name);
  for (const {name, value} of next.attributes) if (old.getAttribute(name) !== value && !ofReader.has(name)) old.setAttribute(name, value);
  for (const name of Object.keys(old.handlers ?? {})) if (!next.handlers?.[name]) old[name] = null;
  Object.assign(old, next.handlers);
  old.handlers = next.handlers;
  morphChildren(old, next);
}

// Numbers and their units.

const nothing = '–';

export const num = v => (v === undefined || v === null ? nothing : v.toLocaleString('en-US'));
export const count = (n, noun, nouns = `${noun}s`) => `${num(n)} ${Number(n) === 1 ? noun : nouns}`;

export function bytes(v) {
  let n = Number(v);
  for (const unit of ['B', 'kB', 'MB', 'GB', 'TB']) {
    if (n < 999.5 || unit === 'TB') return `${unit === 'B' ? n : digits(n)} ${unit}`;
    n /= 1000;
  }
}

/** Rounds to three significant digits, without an exponent. */
const digits = n => n.toLocaleString('en-US', {maximumSignificantDigits: 3});

export const perSecond = v => (v === null || v === undefined ? nothing : `${v < 10 ? v.toLocaleString('en-US', {maximumFractionDigits: 1}) : num(Math.round(v))} /s`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return nothing;
  if (seconds > 0 && seconds < 0.001) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1000)} ms`;
  if (seconds < 120) return `${digits(seconds)} s`;
  if (seconds < 7200) return `${digits(seconds / 60)} min`;
  return `${digits(seconds / 3600)} h`;
}

export const clock = ms => new Date(ms).toLocaleTimeString('en-GB');
export const dateOf = text => text.replace('T', ' ').replace(/(\.\d+)?Z$/, ' UTC');

// Parts of pages.

/** A table. Columns are {name, num} and rows are lists of cells. On a narrow screen each row is a card. */
export function table(caption, columns, rows, empty = 'None.') {
  if (rows.length === 0) return h('p', {class: 'muted'}, empty);
  return h('div', {class: 'scroll'}, h('table', {role: 'table'},
    h('caption', {class: 'unseen'}, caption),
    h('thead', {role: 'rowgroup'}, h('tr', {role: 'row'}, columns.map(c => h('th', {role: 'columnheader', scope: 'col', class: c.num && 'num'}, c.name)))),
    h('tbody', {role: 'rowgroup'}, rows.map(cells => h('tr', {role: 'row'}, cells.map((cell, i) =>
      h('td', {role: 'cell', class: columns[i].num && 'num', 'data-name': columns[i].name}, h('span', null, cell))))))));
}

/** A bar of parts. Each part is {share, class}; the shares are fractions of 1. */
export function bar(label, parts) {
  let x = 0;
  return h('svg', {class: 'bar', role: 'img', 'aria-label': label, viewBox: '0 0 100 6', preserveAspectRatio: 'none'},
    h('title', null, label),
    h('rect', {class: 'rest', width: 100, height: 6}),
    parts.map(p => {
      const width = Math.max(0, Math.min(1, p.share)) * 100;
      const part = h('rect', {class: p.class, x: x.toFixed(2), width: width.toFixed(2), height: 6});
      x += width;
      return part;
    }));
}

/** A command with a button that copies it. The clipboard needs HTTPS or loopback; elsewhere the text is selected. */
export function copyable(command, what) {
  return h('div', {class: 'copy', key: `copy ${what}`},
    h('code', {tabindex: 0, 'aria-label': what}, command),
    h('button', {type: 'button', class: 'small', 'aria-label': `Copy: ${what}`, onclick: async e => {
      const code = e.target.previousSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        say('Copied.');
      } catch {
        getSelection().selectAllChildren(code);
        say('Selected: copy it with the keyboard.');
      }
    }}, 'Copy'));
}

/** Shows a text for some seconds; screen readers read it out. */
export function say(message) {
  const region = document.getElementById('said');
  draw(region, h('p', null, message));
  clearTimeout(region.timer);
  region.timer = setTimeout(() => draw(region), 6000);
}

export function failed(failure) {
  return h('p', {class: 'failed'}, h('strong', null, failure.code === 'no_answer' ? 'No answer' : failure.code), ': ', failure.message,
    failure.status > 0 && failure.code !== 'no_answer' ? [' ', h('a', {href: `#/runbook/${failure.code}`}, 'What to do')] : null);
}

let dialogs = 0;

/**
 * Asks for confirmation before a change. says has the sentences that describe the effect; fields are more elements.
 * run gets the form's fields. The dialog shows an element that run returns, the page a text.
 */
export function confirm({title, says = [], fields = [], action, danger = false, run}) {
  const id = `dialog-${++dialogs}`;
  const result = h('div', {role: 'alert'});
  const cancel = h('button', {type: 'button', onclick: () => dialog.close()}, 'Cancel');
  const go = h('button', {type: 'submit', class: danger ? 'danger' : 'primary'}, action);
  const form = h('form', {method: 'dialog', onsubmit: async e => {
    e.preventDefault();
    go.disabled = true;
    draw(result, h('p', {class: 'muted'}, 'Working …'));
    try {
      const done = await run(Object.fromEntries(new FormData(form)));
      if (done instanceof Node) {
        draw(result, done);
        go.remove();
        cancel.textContent = 'Close';
        return;
      }
      dialog.close();
      say(done);
    } catch (failure) {
      if (failure.code === undefined) console.error(failure);
      draw(result, failed(failure));
      go.disabled = false;
    }
  }}, h('h2', {id}, title), says.map(s => h('p', null, s)), fields, result, h('div', {class: 'buttons'}, cancel, go));
  const dialog = h('dialog', {'aria-labelledby': id, onclose: () => dialog.remove()}, form);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function field(label, input, hint) {
  return h('label', {class: 'field'}, h('span', null, label), input, hint && h('small', null, hint));
}
