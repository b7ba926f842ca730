// The runbook (docs/OPERATING.md) that the node serves: the section of a warning, and the whole page.
import {draw, h, table} from './dom.js';

let text;

/** Returns the sections of the runbook: {level, title, id, body}. */
export async function sections() {
  text ??= fetch('runbook.md').then(answer => answer.text());
  return split(await text);
}

export function split(markdown) {
  const all = [];
  let fenced = false;
  for (const line of markdown.split('\n')) {
    if (line.startsWith('```')) fenced = !fenced;
    const heading = fenced ? null : /^(#{1,4}) (.*)$/.exec(line);
    if (heading) all.push({level: heading[1].length, title: heading[2], id: idOf(heading[2]), body: []});
    else all.at(-1)?.body.push(line);
  }
  return all;
}

/** Returns the anchor of a heading, as on GitHub. */
const idOf = title => title.toLowerCase().replace(/[^a-z0-9_ -]/g, '').replaceAll(' ', '-');

/** Returns the elements of the section about a warning, or null. Its commands have the warning's subjects. */
export function adviceOf(all, {code, node, keyspace}) {
  const found = all?.find(s => s.id === code);
  return found ? blocks(found.body.map(line => line.replace(/^    .*/, l => l.replace('NODE', node).replace('KEYSPACE', keyspace)))) : null;
}

/** Returns the elements of Markdown, of the forms in the runbook. */
function blocks(lines) {
  const out = [];
  let at = 0;
  const take = (match, strip) => {
    const taken = [];
    for (; at < lines.length && match(lines[at]); at++) taken.push(strip(lines[at]));
    return taken;
  };
  while (at < lines.length) {
    const line = lines[at];
    if (line.trim() === '') at++;
    else if (line.startsWith('    ')) out.push(h('pre', null, take(l => l.startsWith('    ') || l.trim() === '', l => l.slice(4)).join('\n').trimEnd()));
    else if (line.startsWith('| ')) {
      const [head, , ...rows] = take(l => l.startsWith('|'), l => l.slice(2, -2).split(' | '));
      out.push(table('Symptoms', head.map(name => ({name})), rows.map(r => r.map(inline))));
    } else if (/^(- |\d+\. )/.test(line)) {
      const items = [];
      while (at < lines.length && /^(- |\d+\. |  \S)/.test(lines[at])) {
        if (/^  \S/.test(lines[at])) items.push(`${items.pop()} ${lines[at].trim()}`);
        else items.push(lines[at].replace(/^(- |\d+\. )/, ''));
        at++;
      }
      out.push(h(line.startsWith('-') ? 'ul' : 'ol', null, items.map(i => h('li', anchorOf(i), inline(i)))));
    } else out.push(h('p', null, inline(take(l => l.trim() !== '' && !/^(- |\d+\. |    |\| )/.test(l), l => l).join(' '))));
  }
  return out;
}

const anchorOf = item => {
  const id = /<a id="([^"]*)">/.exec(item)?.[1];
  return id ? {id: `runbook-${id}`} : null;
};

/** Returns the nodes of a line: code, bold and links. A link to another document becomes the document's name. */
function inline(line) {
  const out = [];
  let from = 0;
  for (const m of line.matchAll(/<a id="[^"]*"><\/a>|`([^`]*)`|\*\*([^*]*)\*\*|\*([^* ][^*]*)\*|\[((?:`[^`]*`|[^\]`])*)\]\(([^)]*)\)/g)) {
    out.push(line.slice(from, m.index));
    from = m.index + m[0].length;
    if (m[1] !== undefined) out.push(h('code', null, m[1]));
    else if (m[2] !== undefined) out.push(h('strong', null, m[2]));
    else if (m[3] !== undefined) out.push(h('em', null, m[3]));
    else if (m[4] !== undefined && m[5].startsWith('#')) out.push(h('a', {href: `#/runbook/${m[5].slice(1)}`}, inline(m[4])));
    else if (m[4] !== undefined) out.push(inline(m[4]), ` (${m[5].replace(/^\.\.\//, '').replace(/#.*/, '')})`);
  }
  out.push(line.slice(from));
  return out;
}

export function runbookPage(anchor) {
  const page = {title: 'Runbook', render: () => [h('h1', null, 'Runbook'), h('div', {class: 'runbook', keep: true})]};
  page.drawn = async main => {
    const into = main.querySelector('.runbook');
    const all = await sections();
    draw(into, all.map(s => h('section', {id: `runbook-${s.id}`}, h(`h${Math.min(s.level + 1, 5)}`, {tabindex: -1}, inline(s.title)), blocks(s.body))));
    const target = anchor && document.getElementById(`runbook-${anchor}`);
    target?.scrollIntoView();
    target?.querySelector('[tabindex]')?.focus();
  };
  return page;
}
