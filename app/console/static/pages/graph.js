// An ensemble drawn: its steps from left to right, with their figures of this moment.
import { get, modelPath } from "../lib/api.js";
import { badge, h, link, note, replace, section, svg } from "../lib/dom.js";
import { bytes, count, ms, rate } from "../lib/format.js";
import { live } from "../lib/live.js";
import { modelNav, stylesheet } from "../lib/model_nav.js";
import { graphOf, plan } from "../drawing/layers.js";
import { sizeOf } from "../tensors/datatypes.js";

const NARROW = "(max-width: 700px)";
const LETTERS = 16;
const SMALLEST = 0.8; // of its size, before it scrolls

export async function show(view, { params, signal, title }) {
  const { model } = params;
  title(`Graph of ${model}`);
  stylesheet("trying/try.css");
  stylesheet("drawing/graph.css");
  view.append(modelNav(model, "", "Graph", { kind: "ensemble" }));
  const config = await get(`${modelPath(model)}/config`, { signal });
  if (!config.ensemble_scheduling?.step?.length) {
    view.append(note(`${model} is no ensemble: it has no steps.`));
    return;
  }
  const graph = graphOf(config);
  const sizes = await sizesOf(graph, config, signal);
  const place = h("div", { class: "card drawing" });
  const table = h("div");
  view.append(place, section("Steps", table));
  const narrow = matchMedia(NARROW);
  let update = () => {};
  const draw = () => {
    const drawn = drawing(graph, model, narrow.matches, sizes);
    replace(place, drawn.node);
    update = drawn.update;
    update(live.models);
  };
  narrow.addEventListener("change", draw, { signal });
  draw();
  const steps = stepTable(graph);
  replace(table, steps.node);
  live.watch(({ models }) => {
    update(models);
    steps.update(models);
  }, signal);
}

// The row that answers a step: its version, or else the newest that is ready.
function rowOf(models, { model, version }) {
  const rows = [...models.values()].filter((row) => row.name === model && (!version || row.version === version));
  const ready = rows.filter((row) => row.look === "good").sort((one, other) => other.version - one.version);
  return ready[0] ?? rows[0] ?? null;
}

const latency = (row) => (row.p50_ms === null || row.p50_ms === undefined ? "" : `${ms(row.p50_ms)} · `);
const figures = (row) => (row ? `${latency(row)}${rate(row.rate)}` : "not loaded");

function drawing(graph, model, down, sizes) {
  const { width, height, boxes, lines } = plan(graph, down ? { down, width: 150, beside: 12, gap: 58 } : {});
  const size = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8 };
  const arrow = svg("marker", { id: "arrow", orient: "auto", ...size }, svg("path", { d: "M0 0L8 4L0 8z", class: "head" }));
  const steps = boxes.filter((box) => box.kind === "step").map((box) => ({ box, ...stepNode(box) }));
  const ends = boxes.filter((box) => box.kind !== "step").map(endNode);
  const area = { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": summary(graph, model) };
  const edges = lines.map((line) => edgeNode(line, sizes.get(line.tensor)));
  const drawn = svg("svg", area, svg("defs", {}, arrow), edges.map((each) => each.node), ends, steps.map((each) => each.node));
  drawn.style.minWidth = `${SMALLEST * width}px`;
  const node = h("div", { class: "scrolls", tabindex: "0", role: "region", aria: { label: "Drawing" } }, drawn);
  const boxOf = new Map(boxes.map((box) => [box.id, box]));
  const rowOfBox = (models, id) => (boxOf.get(id)?.kind === "step" ? rowOf(models, boxOf.get(id)) : null);
  const update = (models) => {
    const whole = rowOf(models, { model, version: "" });
    for (const each of steps) each.update(rowOf(models, each.box));
    for (const { line, update: tell } of edges) tell(passing(whole, rowOfBox(models, line.from), rowOfBox(models, line.to)));
  };
  return { node, update };
}

function summary({ nodes, edges }, model) {
  const steps = nodes.filter((node) => node.kind === "step");
  return `${model}: ${steps.length} steps, ${edges.length} connections. The table below says the same.`;
}

function stepNode(box) {
  const state = svg("circle", { cx: box.x + 16, cy: box.y + 22, r: 5 });
  const words = svg("text", { x: box.x + 12, y: box.y + 62, class: "figures" });
  const kind = svg("text", { x: box.x + 12, y: box.y + 44, class: "kind" });
  const node = svg("a", { href: link("model", box.model, box.version) },
    svg("title", {}, box.title),
    svg("rect", { x: box.x, y: box.y, width: box.width, height: box.height, rx: 8, class: "step" }),
    state, svg("text", { x: box.x + 28, y: box.y + 27, class: "name" }, cut(box.title, box.width)), kind, words);
  const update = (row) => {
    state.setAttribute("class", `state ${row?.look ?? "bad"}`);
    kind.textContent = row ? `${row.word}${box.when ? ", on a condition" : ""}` : "not loaded";
    words.textContent = row ? figures(row) : "";
  };
  return { node, update };
}

function endNode(box) {
  return svg("g", {}, svg("title", {}, box.title),
    svg("rect", { x: box.x, y: box.y, width: box.width, height: box.height, rx: 18, class: "end" }),
    svg("text", { x: box.x + box.width / 2, y: box.y + 23, class: "name middle" }, cut(box.title, box.width + 24)));
}

// Requests of the ensemble a second that pass an edge: all of them, but for steps that run on a condition.
function passing(whole, from, to) {
  const rates = [whole?.rate, from?.rate, to?.rate].filter((each) => each !== undefined && each !== null);
  return rates.length ? Math.min(...rates) : null;
}

function edgeNode(line, size) {
  const { path, x, y, tensor, condition, spoken } = line;
  const words = condition || tensor;
  const told = svg("text", { x, y: y + 14, class: "middle passing" });
  const node = svg("g", { class: condition ? "edge condition" : "edge" }, svg("title", {}, words),
    svg("path", { d: path, "marker-end": "url(#arrow)" }),
    spoken ? [svg("text", { x, y: y - 6, class: "middle" }, short(words, LETTERS)), told] : null);
  const update = (passed) => {
    const moved = passed && size ? `${bytes(passed * size)}/s` : passed === null ? "" : rate(passed);
    if (told.textContent !== moved) told.textContent = moved;
  };
  return { line, node, update };
}

// The bytes of a row of each tensor between the steps, where the configurations say so.
async function sizesOf({ nodes }, config, signal) {
  const found = new Map();
  const note = (tensor, { dims, data_type: type }) => {
    const size = dims.reduce((all, dim) => all * Math.max(0, Number(dim)), sizeOf(type.replace("TYPE_", "").replace("STRING", "BYTES")));
    if (size) found.set(tensor, size);
  };
  for (const each of [...(config.input ?? []), ...(config.output ?? [])]) note(each.name, each);
  const steps = nodes.filter((node) => node.kind === "step");
  const configs = await Promise.all(steps.map((step) => get(modelPath(step.model, step.version, "config"), { signal }).catch(() => null)));
  for (const [place, step] of config.ensemble_scheduling.step.entries()) {
    for (const [output, tensor] of Object.entries(step.output_map ?? {})) {
      const made = configs[place]?.output?.find((each) => each.name === output);
      if (made) note(tensor, made);
    }
  }
  return found;
}

function cut(text, width) {
  return short(text, Math.floor((width - 40) / 7.4));
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// The drawing in words, for those who cannot see it, and with more figures for those who can.
function stepTable({ nodes, edges }) {
  const named = (node) => (node.kind === "step" ? node.title : "the request");
  const name = new Map(nodes.map((node) => [node.id, named(node)]));
  const steps = nodes.filter((node) => node.kind === "step").map((step, place) => {
    const read = edges.filter((edge) => edge.to === step.id && !edge.condition);
    const from = read.map((edge) => `${edge.tensor} of ${name.get(edge.from)}`);
    const state = h("td");
    const cells = ["p50", "p99", "rate", "pending"].map(() => h("td", { class: "right" }));
    const when = edges.find((edge) => edge.to === step.id && edge.condition)?.condition ?? "";
    const leads = h("a", { href: link("model", step.model, step.version) }, `${place + 1}. ${step.title}`);
    const row = h("tr", {}, h("th", { scope: "row" }, leads), state, h("td", {}, from.join(", ")),
      h("td", {}, when || "always"), cells);
    return { step, row, state, cells };
  });
  const heads = ["Step", "State", "Reads", "Runs", "p50", "p99", "Requests", "Pending"];
  const head = h("tr", {}, heads.map((each, at) => h("th", { scope: "col", class: at > 3 ? "right" : null }, each)));
  const table = h("table", {}, h("thead", {}, head), h("tbody", {}, steps.map((each) => each.row)));
  const node = h("div", { class: "scrolls", tabindex: "0", role: "region", aria: { label: "Steps" } }, table);
  const update = (models) => {
    for (const { step, state, cells } of steps) {
      const row = rowOf(models, step);
      replace(state, badge(row?.word ?? "not loaded", row?.look ?? "bad"));
      const words = row ? [ms(row.p50_ms), ms(row.p99_ms), rate(row.rate), count(row.pending)] : [];
      cells.forEach((cell, at) => (cell.textContent = words[at] ?? "–"));
    }
  };
  return { node, update };
}
