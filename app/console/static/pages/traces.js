// The last requests that were traced, each as a waterfall: what it waited for, and the calls that it made.
import { get } from "../lib/api.js";
import { facts, h, link, note, replace, svg } from "../lib/dom.js";
import { clock, ms } from "../lib/format.js";
import { repeat, trouble } from "../lib/repeat.js";
import { dataTable } from "../lib/table.js";

const MOST = 100;

// The parts of a span, from one activity to another.
const PARTS = [
  ["received", "s5", "HTTP_RECV_START", "HTTP_RECV_END"],
  ["received", "s5", "GRPC_WAITREAD_START", "GRPC_WAITREAD_END"],
  ["waiting", "s1", "QUEUE_START", "COMPUTE_START"],
  ["input", "s2", "COMPUTE_START", "COMPUTE_INPUT_END"],
  ["computing", "s0", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"],
  ["output", "s3", "COMPUTE_OUTPUT_START", "COMPUTE_END"],
  ["sent", "s5", "HTTP_SEND_START", "HTTP_SEND_END"],
  ["sent", "s5", "GRPC_SEND_START", "GRPC_SEND_END"],
];

export async function show(view, { params, signal, title }) {
  title("Traces");
  const kept = new Map();
  let after = 0;
  const problem = note("", "bad");
  const chosen = h("div", { aria: { live: "polite" } });
  const table = dataTable({
    label: "Traces", key: (trace) => trace.number, sort: ["number", "desc"],
    columns: [
      {
        key: "number", title: "Number",
        node: (trace) => h("a", { href: link("traces", String(trace.number)) }, String(trace.number)),
      },
      { key: "at", title: "Time", text: (trace) => clock(trace.at) },
      { key: "model", title: "Model", text: modelOf, sort: modelOf },
      { key: "us", title: "Duration", align: "right", text: (trace) => ms(trace.us / 1000) },
      { key: "calls", title: "Calls", align: "right", text: (trace) => String(callsOf(trace)), sort: callsOf },
      { key: "id", title: "Request id", hide_narrow: true, text: idOf, sort: idOf },
    ],
    filter: (trace) => `${trace.spans.map(named).join(" ")} ${idOf(trace)}`,
    open: (trace) => link("traces", String(trace.number)),
  });

  async function read() {
    const found = await get(`/v2/nereid/traces?after=${after}`, { signal });
    for (const trace of found.traces) kept.set(trace.number, trace);
    after = Math.max(after, ...found.traces.map((trace) => trace.number));
    for (const number of kept.keys()) if (kept.size > MOST) kept.delete(number);
    if (found.traces.length) table.update([...kept.values()]);
    const wanted = kept.get(Number(params.number));
    if (wanted && !chosen.hasChildNodes()) replace(chosen, waterfall(wanted));
  }

  const about = "While this page is open the server traces up to ten requests a second, without tensors.";
  view.append(h("p", { class: "quiet" }, about), problem, chosen, table.node);
  await repeat(read, signal, trouble(problem));
  if (params.number && !chosen.hasChildNodes()) replace(chosen, note("The server no longer has this trace."));
}

function named(span) {
  return `${span.model} ${span.version}`.trim();
}

const modelOf = (trace) => named(trace.spans[0]);
const callsOf = (trace) => trace.spans.length - 1;
const idOf = (trace) => trace.spans[0].request_id;

const WIDTH = 900;
const NAMES = 250;
const ROW = 26;

// Draws a trace: a row a span, indented below the one that made it, its parts beside each other in time.
export function waterfall(trace) {
  const depths = new Map();
  for (const span of trace.spans) depths.set(span.number, (depths.get(span.parent) ?? -1) + 1);
  const scale = (WIDTH - NAMES - 70) / Math.max(1, trace.us);
  const x = (us) => NAMES + us * scale;
  const rows = trace.spans.flatMap((span, place) => row(span, place, depths.get(span.number), x));
  const words = trace.spans.map((span) => `${named(span)}: ${ms(length(span) / 1000)}`).join("; ");
  const height = trace.spans.length * ROW + 8;
  const box = { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `Spans of the trace. ${words}` };
  const legend = new Map(PARTS.map(([name, look]) => [name, look]));
  const named_looks = [...legend].map(([name, look]) => h("li", { class: look }, name));
  const told = facts([
    ["Model", modelOf(trace)], ["Time", clock(trace.at)], ["Duration", ms(trace.us / 1000)],
    ["Calls", String(callsOf(trace))], ["Request id", idOf(trace) || "none"],
  ]);
  const drawn = scrolled("Waterfall", svg("svg", box, rows));
  const figure = h("figure", { class: "chart waterfall" }, h("figcaption", {}, h("ul", {}, named_looks)), drawn);
  return h("section", { class: "card" }, told, figure, activities(trace));
}

// What is wider than a small screen, in a box that the arrow keys move.
function scrolled(label, node) {
  return h("div", { class: "wide-scroll", tabindex: "0", role: "group", aria: { label } }, node);
}

function length(span) {
  const times = span.stamps.map(([, us]) => us);
  return times.length ? Math.max(...times) - Math.min(...times) : 0;
}

function row(span, place, depth, x) {
  const y = place * ROW + 4;
  const at = new Map(span.stamps);
  const times = [...at.values()];
  const name = named(span);
  const label = svg("text", { x: 8 + depth * 14, y: y + 13 }, name.length > 32 ? `${name.slice(0, 31)}…` : name);
  if (!times.length) return [label];
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const width = Math.max(1, x(last) - x(first));
  const whole = svg("rect", { class: "span", x: x(first), y, width, height: 18 });
  const known = PARTS.filter(([, , from, to]) => at.has(from) && at.has(to));
  const parts = known.map(([part, look, from, to]) => {
    const size = Math.max(0.5, x(at.get(to)) - x(at.get(from)));
    const told = svg("title", {}, `${part}: ${ms((at.get(to) - at.get(from)) / 1000)}`);
    return svg("rect", { class: `bar ${look}`, x: x(at.get(from)), y: y + 3, width: size, height: 12 }, told);
  });
  return [label, whole, ...parts, svg("text", { x: x(last) + 4, y: y + 13 }, ms((last - first) / 1000))];
}

function activities(trace) {
  const row = (span, [name, us]) => {
    const at = h("td", { class: "right" }, ms(us / 1000));
    return h("tr", {}, h("th", { scope: "row" }, named(span)), h("td", {}, name), at);
  };
  const rows = trace.spans.flatMap((span) => span.stamps.map((stamp) => row(span, stamp)));
  const head = h("tr", {}, ["Model", "Activity", "After"].map((text) => h("th", { scope: "col" }, text)));
  const table = h("table", {}, h("thead", {}, head), h("tbody", {}, rows));
  return h("details", {}, h("summary", {}, "Activities"), scrolled("Activities", table));
}
