// One model: its state and why, what it takes and gives, how it does, its loads and its configuration.
import { get, modelPath, post } from "../lib/api.js";
import { ask, badge, button, copyable, facts, h, link, note, notify, replace, section } from "../lib/dom.js";
import { ago, bytes, clock, count, decimal, duration, ms, percent, rate } from "../lib/format.js";
import { events, live } from "../lib/live.js";
import { modelNav, stylesheet } from "../lib/model_nav.js";
import { configText } from "../drawing/config_text.js";
import { dims } from "../tensors/values.js";
import { batches, charts } from "../drawing/model_figures.js";

export async function show(view, { params, signal, title }) {
  const { model, version } = params;
  title(model);
  stylesheet("trying/try.css");
  const [nav, head, versions, rest] = Array.from({ length: 4 }, () => h("div"));
  view.append(nav, head, versions, rest);
  const shownState = h("div", { class: "told" });
  const buttons = actions(model);
  let shown = "";
  let state = "";
  let asked = new AbortController();
  live.watch(({ models }) => {
    const rows = [...models.values()].filter((each) => each.name === model).sort(byVersion);
    const row = rows.find((each) => each.version === version) ?? (version ? null : (rows.at(-1) ?? null));
    const key = JSON.stringify(rows);
    if (key !== shown || !head.firstChild) draw(row, rows);
    shown = key;
    if (!row || state === `${row.version} ${row.look}`) return;
    state = `${row.version} ${row.look}`; // of one that was loaded meanwhile there is more to tell
    asked.abort();
    asked = new AbortController();
    below(rest, { model, version: row.version, signal: asked.signal, ready: row.look === "good" });
  }, signal);
  signal.addEventListener("abort", () => asked.abort());
  // What has the focus is not replaced: the figures change each second.
  function draw(row, rows) {
    const kind = row?.kind ?? "";
    if (nav.dataset.kind !== kind) replace(nav, modelNav(model, version, "Model", row));
    nav.dataset.kind = kind;
    if (row) replace(shownState, ...stateOf(row));
    if (!row) replace(head, note(absent(model, version), "busy"));
    else if (!head.contains(shownState)) replace(head, h("div", { class: "card" }, buttons, shownState));
    if (versions.contains(document.activeElement)) return;
    replace(versions, rows.length > 1 ? section("Versions", versionTable(rows, row)) : null);
  }
}

const byVersion = (one, other) => Number(one.version) - Number(other.version);
const share = (weight) => (weight === null || weight === undefined ? "–" : percent(weight));

function absent(model, version) {
  if (!live.models.size) return "Waiting for the server's answer.";
  return `There is no model ${model}${version ? ` version ${version}` : ""} now.`;
}

function stateOf(row) {
  const words = [row.kind, row.version && `version ${row.version}`].filter(Boolean).join(", ");
  const state = h("p", {}, badge(row.word, row.look), ` ${words}`);
  const why = row.reason && note(row.reason, row.look);
  const remedy = row.remedy && h("p", { class: "remedy" }, h("b", {}, "What to do: "), row.remedy);
  return [state, why, remedy, facts(figures(row))];
}

function figures(row) {
  return [
    ["Requests", rate(row.rate)], ["Errors", rate(row.errors)], ["p50", ms(row.p50_ms)], ["p99", ms(row.p99_ms)],
    ["Queue", ms(row.queue_ms)], ["Compute", ms(row.compute_ms)], ["Mean batch", decimal(row.batch)],
    ["Waiting", count(row.pending)],
    row.kind === "ensemble" ? null : ["Replicas × instances", `${count(row.replicas)} × ${count(row.instances)}`],
    row.memory_bytes ? ["Memory", bytes(row.memory_bytes)] : null, ["Traffic", share(row.weight)],
    ["Ready", row.ready_at ? ago(row.ready_at) : "–"], ["Load took", row.load_s ? duration(row.load_s) : "–"],
    ["Restarts", count(row.restarts)],
  ].filter(Boolean);
}

function actions(model) {
  const path = `/v2/repository/models/${encodeURIComponent(model)}`;
  const load = button("Load again", async () => {
    await post(`${path}/load`);
    notify(`${model} is loaded.`, "good");
  }, { title: "Read its files again and load it" });
  const unload = button("Unload", async () => {
    const text = "Requests to it are refused until it is loaded again.";
    if (!(await ask({ title: `Unload ${model}?`, text, action: "Unload it", danger: true }))) return;
    await post(`${path}/unload`);
    notify(`${model} is unloaded.`, "good");
  }, { kind: "danger" });
  return h("div", { class: "buttons loads" }, load, unload);
}

function versionTable(rows, current) {
  const body = rows.map((row) => {
    const href = link("model", row.name, row.version);
    const name = h("a", { href, aria: row === current ? { current: "page" } : {} }, row.version || "none");
    const cells = [rate(row.rate), ms(row.p99_ms), share(row.weight)].map((text) => h("td", { class: "right" }, text));
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, badge(row.word, row.look)), cells);
  });
  return table(["Version", "State", "Requests", "p99", "Traffic"], body, "Versions");
}

const RIGHT = new Set(["Requests", "p99", "Traffic", "Load took"]);

function table(heads, rows, label) {
  const titles = heads.map((each, place) => h("th", { scope: "col", class: RIGHT.has(each) ? "right" : null }, each));
  const made = h("table", {}, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, rows));
  return h("div", { class: "scrolls", tabindex: "0", role: "region", aria: { label } }, made);
}

// What is asked for apart from the live figures: each part appears when its answer is there.
function below(place, page) {
  const parts = page.ready ? [tensors, charts, batches, loads, configuration] : [loads];
  const places = parts.map(() => h("div"));
  replace(place, places);
  for (const [number, part] of parts.entries()) {
    part(places[number], page).catch((error) => {
      if (!page.signal.aborted) replace(places[number], note(error.message, "bad"));
    });
  }
}

async function tensors(place, { model, version, signal }) {
  const path = modelPath(model, version);
  const [metadata, config] = await Promise.all([get(path, { signal }), get(`${path}/config`, { signal })]);
  const sides = [["Inputs", metadata.inputs, config.input], ["Outputs", metadata.outputs, config.output]];
  const cards = sides.map(([title, list, specs]) => {
    const rows = list.map((tensor) => tensorRow(tensor, (specs ?? []).find(({ name }) => name === tensor.name) ?? {}));
    const region = { class: "scrolls", tabindex: "0", role: "region", aria: { label: title } };
    return h("div", { class: "card" }, section(title, h("div", region, h("table", {}, h("tbody", {}, rows)))));
  });
  replace(place, h("div", { class: "columns tensors" }, cards));
}

function tensorRow({ name, datatype, shape }, spec) {
  const format = spec.format === "FORMAT_NONE" ? "" : spec.format;
  const more = [spec.optional && "optional", spec.label_filename && `labels: ${spec.label_filename}`, format];
  const cells = [datatype, dims(shape.map(Number))].map((text) => h("td", {}, text));
  const rest = h("td", { class: "quiet" }, more.filter(Boolean).join(", "));
  return h("tr", {}, h("th", { scope: "row" }, name), cells, rest);
}

async function loads(place, { model, signal }) {
  const rows = (await events(model, { signal })).map((each) => h("tr", {}, h("th", { scope: "row" }, clock(each.at)),
    h("td", {}, badge(each.word, each.look)), h("td", { class: "right" }, each.load_s ? duration(each.load_s) : "–"),
    h("td", {}, each.version), h("td", { class: "reason" }, each.reason)));
  if (!rows.length) return;
  const heads = ["At", "What", "Load took", "Version", "Reason"];
  replace(place, section("Loads and failures", table(heads, rows, "Loads and failures")));
}

async function configuration(place, { model, version, signal }) {
  const config = await get(modelPath(model, version, "config"), { signal });
  const words = h("p", { class: "quiet" }, "As it is served, with what the server has completed.");
  replace(place, section("Configuration", words, copyable(configText(config))));
}
