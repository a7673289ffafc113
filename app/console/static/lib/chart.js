// Small charts as SVG: lines over time, bars beside each other. A sentence says the same to screen readers.
import { h, replace, svg } from "./dom.js";
import { clock, decimal } from "./format.js";

const WIDTH = 480;
const LEFT = 46;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;
const LETTER = 8;
const LEAST_SHOWN = 7;

// series: { name, values } each, null where there is no value. step_s, ends_at: of `history` in live.js.
export function lineChart({ title, unit = "", series, step_s = 1, ends_at = 0, height = 150 }) {
  const node = h("figure", { class: "chart" });
  function update(change) {
    ({ series = series, step_s = step_s, ends_at = ends_at } = change);
    const most = ceiling(series);
    const count = Math.max(2, ...series.map(({ values }) => values.length));
    const x = (place) => LEFT + (place / (count - 1)) * (WIDTH - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - (value / most) * (height - TOP - BOTTOM);
    const lines = series.map(({ values }, place) => {
      return svg("path", { class: `line s${place % 6}`, d: path(values, x, y) });
    });
    const times = [0, count - 1].map((place) => {
      const at = clock(ends_at - (count - 1 - place) * step_s);
      return svg("text", { x: x(place), y: height - 6, class: place ? "end" : "" }, ends_at ? at : "");
    });
    draw(node, { title, unit, series, height, parts: [...scale(most, y), ...lines, ...times] });
  }
  update({ series });
  return { node, update };
}

// labels: of the groups; series: { name, values } each, a value for each label.
export function barChart({ title, unit = "", labels, series, height = 170 }) {
  const node = h("figure", { class: "chart" });
  function update(change) {
    ({ labels = labels, series = series } = change);
    const most = ceiling(series);
    const room = (WIDTH - LEFT - RIGHT) / Math.max(1, labels.length);
    const wide = Math.min(40, (room * 0.8) / Math.max(1, series.length));
    const y = (value) => height - BOTTOM - (value / most) * (height - TOP - BOTTOM);
    const bars = series.flatMap(({ name, values }, place) => values.map((value, group) => {
      const left = LEFT + group * room + (room - wide * series.length) / 2 + place * wide;
      const attributes = { class: `bar s${place % 6}`, x: left, y: y(value ?? 0), width: Math.max(1, wide - 1) };
      const told = svg("title", {}, `${labels[group]}: ${decimal(value)} ${unit} (${name})`);
      const tall = Math.max(0, y(0) - y(value ?? 0));
      return svg("rect", { ...attributes, height: tall }, told);
    }));
    const longest = Math.min(LEAST_SHOWN, Math.max(0, ...labels.map((text) => text.length)));
    const every = Math.ceil(((longest + 1) * LETTER) / room);
    const fit = Math.floor((room * every) / LETTER);
    const words = labels.map((text, group) => {
      const middle = LEFT + (group + 0.5) * room;
      return group % every ? null : svg("text", { x: middle, y: height - 6, class: "middle" }, shortened(text, fit));
    });
    draw(node, { title, unit, series, height, parts: [...scale(most, y), ...bars, ...words] });
  }
  update({ series });
  return { node, update };
}

function draw(node, { title, unit, series, height, parts }) {
  const summary = series.map(({ name, values }) => {
    const known = values.filter((value) => value !== null && value !== undefined);
    if (!known.length) return `${name}: no data`;
    const most = known.reduce((one, other) => Math.max(one, other), -Infinity);
    return `${name}: last ${decimal(known.at(-1))}, highest ${decimal(most)} ${unit}`;
  }).join("; ");
  const area = { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}. ${summary}` };
  const named = series.length > 1 ? series.map(({ name }, place) => h("li", { class: `s${place % 6}` }, name)) : [];
  const caption = h("figcaption", {}, unit ? `${title} (${unit})` : title, named.length ? h("ul", {}, named) : null);
  replace(node, caption, svg("svg", area, parts));
}

function scale(most, y) {
  return [0, most / 2, most].flatMap((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
    svg("text", { class: "end", x: LEFT - 6, y: y(value) + 4 }, decimal(value)),
  ]);
}

// A round number at or above all values.
function ceiling(series) {
  let most = 0;
  for (const { values } of series) for (const value of values) most = Math.max(most, value ?? 0);
  if (most <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= most) ?? most;
}

function path(values, x, y) {
  let text = "";
  let drawing = false;
  for (const [place, value] of values.entries()) {
    if (value === null || value === undefined) {
      drawing = false;
      continue;
    }
    text += `${drawing ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
    if (!drawing && (values[place + 1] ?? null) === null) text += "h1";
    drawing = true;
  }
  return text;
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
