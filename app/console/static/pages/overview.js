// All models: what needs a person first, with live figures.
import { badge, h, link, replace } from "../lib/dom.js";
import { bytes, decimal, ms, percent, rate } from "../lib/format.js";
import { live } from "../lib/live.js";
import { dataTable } from "../lib/table.js";

const ORDER = { bad: 0, busy: 1, good: 2, off: 3 };

// A version without replicas has no figures; an ensemble has none, and figures.
function figure(key, title, text, more = {}) {
  const shown = (row) => row.state === "READY" && !row.idle;
  return { key, title, text: (row) => (shown(row) ? text(row[key]) : ""), align: "right", ...more };
}

const columns = [
  {
    key: "name", title: "Model", sort: (row) => `${row.name}\u0000${row.version}`,
    node: (row) => {
      const version = row.version && h("small", {}, ` ${row.version}`);
      return h("a", { href: link("model", row.name, row.version) }, row.name, version);
    },
  },
  {
    key: "look", title: "State", sort: (row) => ORDER[row.look] ?? 9,
    node: (row) => h("span", { title: row.reason }, badge(row.word, row.look)),
  },
  figure("rate", "Requests", (value) => (value ? rate(value) : "0")),
  figure("errors", "Errors", (value) => (value ? rate(value) : "0")),
  figure("p50_ms", "p50", ms, { hide_narrow: true }),
  figure("p99_ms", "p99", ms),
  figure("queue_ms", "Queue", ms, { hide_narrow: true }),
  figure("compute_ms", "Compute", ms, { hide_narrow: true }),
  figure("batch", "Batch", decimal, { hide_narrow: true }),
  figure("pending", "Pending", decimal, { hide_narrow: true }),
  figure("memory_bytes", "Memory", (value) => (value ? bytes(value) : ""), { hide_narrow: true }),
  figure("weight", "Traffic", (value) => (value === null ? "" : percent(value)), { hide_narrow: true }),
  {
    key: "replicas", title: "Replicas", align: "right", hide_narrow: true,
    text: (row) => (row.replicas ? `${row.replicas}${row.instances > 1 ? ` × ${row.instances}` : ""}` : ""),
  },
  { key: "kind", title: "Kind", hide_narrow: true },
];

export async function show(view, { signal, title }) {
  title("Models");
  const troubles = h("div");
  const table = dataTable({
    label: "Models", columns, key: (row) => row.id, sort: ["look", "asc"],
    filter: (row) => `${row.name} ${row.version} ${row.word} ${row.kind} ${row.reason}`,
    open: (row) => link("model", row.name, row.version),
  });
  view.append(troubles, table.node);
  let drawn = "";
  live.watch(() => {
    const rows = [...live.models.values()];
    if (live.changed.length || live.gone.length || !rows.length) table.update(rows);
    const failed = rows.filter((row) => row.look === "bad");
    const now = JSON.stringify([failed.map((row) => [row.id, row.reason]), live.alerts]);
    if (now !== drawn) replace(troubles, failed.length ? notReady(failed) : null, live.alerts.length ? alerts(live.alerts) : null);
    drawn = now;
  }, signal);
}

const SHOWN = 5;

// What does not work, why, and what to do about it.
function notReady(failed) {
  const items = failed.slice(0, SHOWN).map((row) => h("li", {},
    h("a", { href: link("model", row.name, row.version) }, `${row.name} ${row.version}`.trim()),
    h("p", { class: "why" }, row.reason || row.word), row.remedy && h("p", { class: "remedy" }, row.remedy)));
  const rest = failed.length - SHOWN;
  const more = rest > 0 && h("p", { class: "quiet" }, `and ${rest} more, first in the table`);
  const parts = [h("h2", {}, `${failed.length} not ready`), h("ul", {}, items), more];
  return h("section", { class: "alerts", aria: { label: "Models that do not work" } }, parts);
}

// What the server's figures say of the last minutes, by the rules of app/core/observability/alerts.py.
function alerts(found) {
  const items = found.slice(0, SHOWN).map((alert) => h("li", {},
    h("a", { href: pageOf(alert) }, alert.what), h("p", { class: "remedy" }, alert.advice)));
  const rest = found.length - SHOWN;
  const more = rest > 0 && h("p", { class: "quiet" }, `and ${rest} more`);
  const look = found[0].severity === "critical" ? "" : "busy";
  const parts = [h("h2", {}, found.length === 1 ? "1 alert" : `${found.length} alerts`), h("ul", {}, items), more];
  return h("section", { class: `alerts ${look}`, aria: { label: "Alerts" } }, parts);
}

function pageOf({ page, model, version }) {
  if (!page) return link("model", model, version);
  return ["rollout", "drift"].includes(page) ? link(page, model) : link(page);
}
