// The bill: who and what has consumed how much, beside what was measured.
import { get } from "../lib/api.js";
import { barChart, lineChart } from "../lib/chart.js";
import { button, facts, field, h, note, replace, section, select } from "../lib/dom.js";
import { bytes, count, decimal, percent } from "../lib/format.js";
import { stylesheet } from "../lib/model_nav.js";
import { dataTable } from "../lib/table.js";

const SINCE = [["1h", "the last hour"], ["24h", "the last day"], ["7d", "the last week"], ["30d", "the last 30 days"]];
const BY = [["token,model", "client and model"], ["token", "client"], ["model", "model"], ["model,version", "model and version"], ["day,token", "day and client"], ["node,model", "node and model"]];
const KINDS = { usage: "used", idle: "kept ready", overhead: "the server itself" };
const MOST_BARS = 6;

export async function show(view, { signal, title }) {
  stylesheet("operate/operate.css");
  title("Cost");
  const since = select(SINCE, "24h");
  const by = select(BY, "token,model");
  const body = h("div", { role: "status" });
  async function look() {
    const query = new URLSearchParams({ since: since.value, by: by.value });
    replace(body, content(await get(`/v2/nereid/cost?${query}`, { signal })));
  }
  const form = h("form", { class: "search", on: { submit: (event) => { event.preventDefault(); act.click(); } } });
  const act = button("Show", look, { kind: "primary" });
  form.append(field("Of", since), field("By", by), act);
  view.append(form, body);
  await look();
}

function content(report) {
  if (!report.lines.length) return note("The ledger of this node has nothing of that time. It is written once a minute, where the server's manager runs.");
  const priced = Boolean(report.currency);
  const used = report.lines.filter((line) => line.kind === "usage").slice(0, MOST_BARS);
  const { total } = report;
  return [
    facts([
      ["From", hour(report.first)], ["To the hour of", hour(report.last)],
      ["Processor time used", coreHours(report.lines.reduce((sum, line) => sum + line.cpu_seconds, 0))],
      ...(priced ? [["Cost of what was used", money(report.lines.reduce((sum, line) => sum + line.cost.total, 0), report.currency)]] : []),
      ["Measured of the server", coreHours(total.measured)],
      ["Sum of the lines beside it", total.measured ? percent((total.attributed + total.idle + total.overhead) / total.measured) : "–"],
    ]),
    report.broken ? note(`${count(report.broken)} lines of the ledger cannot be read.`, "bad") : null,
    h("div", { class: "columns" },
      used.length ? h("section", { class: "card" }, bars(report, used, priced)) : null,
      Object.keys(report.hours).length > 1 ? h("section", { class: "card" }, overTime(report)) : null),
    section("All lines", table(report, priced).node),
    report.all_lines > report.lines.length ? h("p", { class: "quiet" }, `${count(report.all_lines - report.lines.length)} smaller lines more: nereid cost report`) : null,
    priced ? null : h("p", { class: "quiet" }, "Without prices (--cost-prices): processor time alone."),
  ];
}

function name(line) {
  const words = Object.entries(line.names).map(([what, value]) => value || (what === "token" ? "no token" : "–"));
  return words.join(" · ");
}

function bars(report, used, priced) {
  const amount = (line) => (priced ? line.cost.total : line.cpu_seconds / 3600);
  const kept = (line) => (priced ? line.allocated_cost.total : line.allocated_core_seconds / 3600);
  const series = [{ name: "used", values: used.map(amount) }, { name: "with its share of what is kept ready", values: used.map(kept) }];
  // Where nobody has a token, the few letters of a label are for what differs.
  const labels = used.map((line) => (used.some((each) => each.names.token) ? name(line) : name(line).replace(/^no token · /, "")));
  return barChart({ title: "The largest", unit: report.currency || "core-hours", labels, series }).node;
}

function overTime(report) {
  const hours = Object.keys(report.hours).sort();
  const first = Date.parse(hours[0]) / 1000;
  const last = Date.parse(hours.at(-1)) / 1000;
  const places = Array.from({ length: Math.round((last - first) / 3600) + 1 }, (_, place) => place);
  const known = new Map(hours.map((each) => [Math.round((Date.parse(each) / 1000 - first) / 3600), report.hours[each]]));
  const series = Object.entries(KINDS).map(([kind, words]) => ({ name: words, values: places.map((place) => (known.has(place) ? known.get(place)[kind] / 3600 : null)) }));
  return lineChart({ title: "Processor time by hour", unit: "core-hours", series, step_s: 3600, ends_at: last }).node;
}

function table(report, priced) {
  const figure = (key, heading, text, more = {}) => ({ key, title: heading, text, align: "right", ...more });
  const columns = [
    { key: "name", title: report.by.join(", "), text: name, sort: name },
    { key: "kind", title: "What", text: (line) => KINDS[line.kind] ?? line.kind },
    ...(priced ? [figure("cost", `Cost (${report.currency})`, (line) => decimal(line.cost.total), { sort: (line) => line.cost.total })] : []),
    figure("cpu_seconds", "Core-hours", (line) => decimal(line.cpu_seconds / 3600)),
    figure("memory_gib_seconds", "GiB-hours", (line) => decimal(line.memory_gib_seconds / 3600), { hide_narrow: true }),
    figure("gpu_seconds", "GPU-hours", (line) => decimal(line.gpu_seconds / 3600), { hide_narrow: true }),
    figure("requests", "Requests", (line) => count(line.requests)),
    figure("rows", "Rows", (line) => count(line.rows), { hide_narrow: true }),
    figure("bytes_out", "Sent", (line) => bytes(line.bytes_out), { hide_narrow: true }),
    figure("energy_joules", "Energy", (line) => (line.energy_joules === null ? "–" : `${decimal(line.energy_joules / 3.6e6)} kWh${line.energy_estimated ? " (estimate)" : ""}`), { hide_narrow: true }),
  ];
  return dataTable({ label: "Lines of the bill", columns, key: (line) => `${line.kind} ${JSON.stringify(line.names)}`, rows: report.lines, sort: [priced ? "cost" : "cpu_seconds", "desc"], filter: name });
}

function hour(text) {
  return text ? new Date(text).toLocaleString("en-GB") : "–";
}

function coreHours(seconds) {
  return seconds === null || seconds === undefined ? "–" : `${decimal(seconds / 3600)} core-hours`;
}

function money(amount, currency) {
  return `${decimal(amount)} ${currency}`;
}
