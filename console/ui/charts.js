// Graphs of the last minutes, drawn by uPlot. The page loads uPlot after the first paint, once it has a graph.
import {clock, draw, h} from './dom.js';

let loading;

function load() {
  loading ??= new Promise((done, fail) => {
    document.head.append(
      h('link', {rel: 'stylesheet', href: 'uPlot.min.css'}),
      h('script', {src: 'uPlot.iife.min.js', onload: () => done(globalThis.uPlot), onerror: () => fail(new Error('cannot load uPlot'))}),
    );
  });
  return loading;
}

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const charts = new Map();

/** Returns the indexes of values between two gaps. No line shows such a value. */
function alone(plot, series) {
  const of = plot.data[series];
  return [...of.keys()].filter(i => of[i] !== null && (of[i - 1] ?? null) === null && (of[i + 1] ?? null) === null);
}

/**
 * Returns the element of a graph, the same one in each call. series are {name, colour, of}, where of is the list of
 * values. at is the list of times. format returns the text of a value.
 */
export function chart(title, at, series, format) {
  if (!charts.has(title)) charts.set(title, make(title, at, series, format));
  const made = charts.get(title);
  made.update();
  return made.element;
}

function make(title, at, series, format) {
  const plotted = h('div', {class: 'plot', 'aria-hidden': 'true'});
  const legend = h('p', {class: 'legend'});
  const element = h('figure', {class: 'card chart', keep: true, key: `chart ${title}`}, h('figcaption', null, title), legend, plotted);
  const empty = h('p', {class: 'empty'}, 'Empty: it draws what happens while this page is open.');
  plotted.append(empty);
  let plot, scheme, hovered = null;

  const told = () => {
    const i = hovered ?? at.length - 1;
    draw(legend,
      series.map(s => h('span', {class: 'series'}, h('span', {class: `swatch ${s.colour}`}), `${s.name} `, h('strong', null, format(s.of[i])))),
      hovered === null ? null : h('span', {class: 'muted'}, `at ${clock(at[i] * 1000)}`));
  };

  const data = () => [at, ...series.map(s => s.of)];

  const build = uPlot => {
    plot?.destroy();
    const axis = {stroke: colour('--muted'), grid: {stroke: colour('--line'), width: 1}, ticks: {show: false}, font: '12px system-ui, sans-serif'};
    plot = new uPlot({
      width: plotted.clientWidth, height: 150, legend: {show: false}, padding: [8, 28, 0, 0],
      cursor: {y: false, points: {size: 6}, drag: {x: false, y: false}},
      scales: {y: {range: (_, min, max) => [0, Math.max(max ?? 0, series[0].least ?? 1) * 1.1]}},
      axes: [
        {...axis, size: 28, values: (_, times) => times.map(t => clock(t * 1000).slice(0, plotted.clientWidth < 340 ? 5 : 8)), space: 80},
        {...axis, size: 64, values: (_, values) => values.map(v => format(v))},
      ],
      series: [{}, ...series.map(s => ({stroke: colour(`--${s.colour}`), width: 2, points: {size: 5, show: false, filter: alone}, spanGaps: false}))],
      hooks: {setCursor: [u => {
        const now = u.cursor.idx ?? null;
        if (now !== hovered) { hovered = now; told(); }
      }]},
    }, data(), plotted);
    empty.remove();
    scheme = dark.matches;
  };

  const dark = matchMedia('(prefers-color-scheme: dark)');
  new ResizeObserver(() => plot?.setSize({width: plotted.clientWidth, height: 150})).observe(plotted);

  return {element, update: async () => {
    told();
    if (!series.some(s => s.of.some(v => v !== null))) return;
    const uPlot = await load();
    if (!element.isConnected || plotted.clientWidth === 0) return;
    if (!plot || scheme !== dark.matches || at.length < 4) build(uPlot);
    else plot.setData(data());
  }};
}
