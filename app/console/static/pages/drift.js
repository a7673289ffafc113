// Drift: of each feature both distributions side by side, and what is an alarm.
import { get } from "../lib/api.js";
import { barChart } from "../lib/chart.js";
import { badge, copyable, facts, h, note, replace, section } from "../lib/dom.js";
import { count, decimal, percent } from "../lib/format.js";
import { modelNav, stylesheet } from "../lib/model_nav.js";
import { repeat } from "../lib/repeat.js";
import { chooseModel } from "../operate/choose.js";
import { plainTable } from "../operate/plain_table.js";
import { redrawing } from "../operate/redraw.js";

const EVERY_MS = 10000; // as often as ingresses report
const MOST = 40;
const MOST_CELLS = 20;

export async function show(view, { params: { model }, signal, title }) {
  stylesheet("operate/operate.css");
  if (!model) {
    title("Drift");
    chooseModel(view, signal, "drift", "Drift is what requests look like beside a reference that was made of earlier ones.");
    return;
  }
  title(`Drift of ${model}`);
  const problem = h("div");
  const body = h("div");
  view.append(modelNav(model, "", "Drift"), problem, body);
  const draw = redrawing(body, ([drift, level, why]) => (drift ? content(drift, level) : unwatched(model, why)));
  repeat(async () => {
    const { drift, alarm_from: level, why } = await get(`/v2/nereid/models/${encodeURIComponent(model)}/drift`, { signal });
    draw([drift, level, why]);
  }, signal, (error) => replace(problem, error ? note(error.message, "bad") : null), EVERY_MS);
}

function unwatched(model, why) {
  return [note(why), h("p", {}, "A reference is made of a tape, or of rows of a file:"), copyable(`nereid drift reference ${quoted(model)} --from PATH`)];
}

// A word as a shell reads it.
function quoted(text) {
  return /^[\w.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function content(found, level) {
  const alarm = found.since > 0;
  const changed = found.features.filter((each) => each.alarmed);
  const words = alarm
    ? note(`Requests have changed since ${new Date(found.since * 1000).toLocaleString("en-GB")}: ${changed.map((each) => each.feature.name).join(", ") || "see below"}.`, "bad")
    : note(found.rows ? "Nothing speaks for a change." : "No rows have been counted yet.", found.rows ? "good" : "");
  const features = [...found.features].sort((one, other) => other.alarmed - one.alarmed || other.evidence - one.evidence);
  return [
    words, found.stale ? note(found.stale, "bad") : null, about(found), quality(found.quality ?? {}),
    section(`Features (an alarm from evidence ${count(level)} on)`, h("div", { class: "columns" }, features.slice(0, MOST).map(card))),
    features.length > MOST ? h("p", { class: "quiet" }, `${features.length - MOST} more with less evidence: nereid drift ${found.model}`) : null,
  ];
}

function about(found) {
  return facts([
    ["Version", String(found.version)], ["Rows counted", count(found.rows)], ["Of these shown", count(found.recent)],
    ["Reference", `${count(found.reference_rows)} rows of ${found.source}`],
    ["Made", found.made ? new Date(found.made * 1000).toLocaleString("en-GB") : "–"],
    ...(found.confidence !== null && found.confidence !== undefined ? [["Mean confidence", percent(found.confidence)]] : []),
  ]);
}

function quality(found) {
  const rows = Object.entries(found).flatMap(([tensor, kinds]) => Object.entries(kinds).map(([kind, rows]) => [tensor, kind, count(rows)]));
  return rows.length ? section("Data quality", plainTable("Data quality", ["Tensor", "What", "Rows"], rows)) : null;
}

function card(status) {
  const { feature, distances } = status;
  const named = { PSI: distances?.psi, JS: distances?.js, Wasserstein: distances?.wasserstein, KS: distances?.ks };
  const words = Object.entries(named).filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => `${name} ${decimal(value)}`);
  return h("section", { class: "card" },
    h("h3", {}, feature.name, " ", status.alarmed ? badge("changed", "bad") : null),
    h("p", { class: "quiet" }, [`${status.is_output ? "output" : "input"} ${status.tensor}`, `evidence ${decimal(status.evidence)}`, ...words].join(" · ")),
    distribution(status));
}

// Shares of the reference and of recent rows, for the cells that have any.
function distribution({ feature, counts }) {
  const before = shares(feature.counts);
  const now = shares(counts);
  const names = cells(feature);
  const places = names.map((_, place) => place).filter((place) => before[place] || now[place]).slice(0, MOST_CELLS);
  const series = [{ name: "reference", values: places.map((place) => before[place]) }, { name: "recent", values: places.map((place) => now[place]) }];
  return barChart({ title: `Shares of ${feature.name}`, unit: "%", labels: places.map((place) => names[place]), series }).node;
}

function shares(counts) {
  const total = counts.reduce((one, other) => one + other, 0) || 1;
  return counts.map((each) => (100 * each) / total);
}

function cells(feature) {
  const values = feature.values ?? [];
  if (values.length || !(feature.edges ?? []).length) return [...values, "(other)", "(new)"];
  return ["NaN", "far below", "below", ...feature.edges.slice(0, -1).map(decimal), "above", "far above"];
}
