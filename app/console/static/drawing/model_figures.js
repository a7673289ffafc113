// The figures of a version over time, and of its batches; both are asked for again while the page can be seen.
import { get, modelPath } from "../lib/api.js";
import { barChart, lineChart } from "../lib/chart.js";
import { facts, h, replace, section } from "../lib/dom.js";
import { bytes, count, ms } from "../lib/format.js";
import { history } from "../lib/live.js";

const EVERY_MS = 10_000;
const SPAN_S = 3600;
const CHARTS = [
  ["Requests", "1/s", [["rate", "all"], ["errors", "errors"]]],
  ["Duration", "ms", [["p50_ms", "p50"], ["p99_ms", "p99"]]],
  ["Where it goes", "ms", [["queue_ms", "queue"], ["compute_ms", "compute"]]],
  ["Rows of a batch", "", [["batch", "mean"]]],
  ["Waiting requests", "", [["pending", "waiting"]]],
];

export async function charts(place, { model, version, signal }) {
  const found = await history(model, version, SPAN_S, { signal });
  const made = CHARTS.map(([title, unit, series]) => {
    const read = (from) => series.map(([key, name]) => ({ name, values: from[key] ?? [] }));
    const { step_s: step, ends_at: end } = found;
    return { read, chart: lineChart({ title, unit, series: read(found), step_s: step, ends_at: end }) };
  });
  const cards = made.map(({ chart }) => h("div", { class: "card" }, chart.node));
  replace(place, section("The last hour", h("div", { class: "charts" }, cards)));
  again(signal, async () => {
    const now = await history(model, version, SPAN_S, { signal });
    for (const { read, chart } of made) chart.update({ ...now, series: read(now) });
  });
}

// Calls `act` every ten seconds while the page can be seen.
function again(signal, act) {
  const timer = setInterval(() => {
    if (!document.hidden) act().catch(() => {}); // the head of the page tells that the server is gone
  }, EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

export async function batches(place, { model, version, signal }) {
  const names = `model=${encodeURIComponent(model)}&version=${encodeURIComponent(version)}`;
  const draw = async () => {
    const [{ model_stats: [stats] }, { versions: [counters] }] = await Promise.all([
      get(modelPath(model, version, "stats"), { signal }), get(`/v2/nereid/counters?${names}`, { signal }),
    ]);
    const used = (stats?.memory_usage ?? []).map((each) => [`${each.type} ${each.id}`, bytes(each.byte_size)]);
    const cards = [...sizes(stats?.batch_stats ?? []), ...(counters ? reasons(counters) : []), card("Memory", used)];
    replace(place, cards.length ? section("Batches and queue", h("div", { class: "charts" }, cards)) : null);
  };
  await draw();
  again(signal, draw);
}

function sizes(stats) {
  if (!stats.length) return [];
  const labels = stats.map((each) => String(each.batch_size));
  const numbers = stats.map((each) => each.compute_infer.count);
  const means = stats.map(({ compute_infer: { ns, count: all } }) => ns / Math.max(1, all) / 1e6);
  return [
    barChart({ title: "Executions by their rows", labels, series: [{ name: "executions", values: numbers }] }),
    barChart({ title: "Compute time by rows", unit: "ms", labels, series: [{ name: "mean", values: means }] }),
  ].map(({ node }) => h("div", { class: "card" }, node));
}

const RELEASES = {
  full: "The batch was full", preferred: "It had a preferred size", delay: "The delay was over",
  idle: "An instance was free",
};

function reasons(found) {
  const waits = [
    ["Waiting", count(found.pending)], ["Oldest has waited", ms(found.queue_age_ms)],
    ["Next would wait", ms(found.expected_wait_ms)],
  ];
  const named = (words, counts) => Object.entries(counts).map(([key, number]) => [words[key] ?? key, count(number)]);
  return [
    card("Queue", waits), card("Why batches were released", named(RELEASES, found.releases)),
    card("Why requests failed", named({}, { ...found.failures, ...found.refusals })),
  ];
}

function card(title, rows) {
  return rows.length ? h("div", { class: "card" }, h("h3", {}, title), facts(rows)) : null;
}
