// The server: version, machine, links to what else shows it, and the settings in effect.
import { get } from "../lib/api.js";
import { badge, facts, h, note, replace, section } from "../lib/dom.js";
import { lineChart } from "../lib/chart.js";
import { bytes, count, percent, rate } from "../lib/format.js";
import { history, live } from "../lib/live.js";
import { stylesheet } from "../lib/model_nav.js";
import { repeat, trouble } from "../lib/repeat.js";
import { dataTable } from "../lib/table.js";
import { plainTable } from "../operate/plain_table.js";

export async function show(view, { signal, title }) {
  title("Server");
  stylesheet("operate/operate.css");
  const [problem, missing] = [note("", "bad"), note("", "busy")];
  const [about, machine, charts] = [h("div"), h("div"), h("div", { class: "columns" })];
  const settings = dataTable({
    label: "Settings", key: (row) => row.flag, sort: ["changed", "desc"],
    columns: [
      { key: "flag", title: "Flag", text: (row) => row.flag },
      { key: "value", title: "Value", text: (row) => row.value || "–" },
      {
        key: "changed", title: "Set", text: (row) => (row.changed ? "set" : "default"),
        sort: (row) => Number(row.changed),
      },
      { key: "help", title: "Meaning", text: (row) => row.help, hide_narrow: true },
    ],
    filter: (row) => `${row.flag} ${row.value} ${row.help}`,
  });
  const drawn = ["rate", "errors", "p50_ms", "p99_ms", "pending"];
  const [traffic, times, waiting] = [
    lineChart({ title: "Requests", unit: "1/s", series: series(["all", "failed"]) }),
    lineChart({ title: "Duration", unit: "ms", series: series(["p50", "p99"]) }),
    lineChart({ title: "Pending", unit: "requests", series: series(["pending"]) }),
  ];
  replace(charts, [traffic, times, waiting].map(({ node }) => h("div", { class: "card" }, node)));
  const nodes = h("div");
  missing.hidden = true;
  view.append(problem, missing, about, section("The last five minutes, all models", charts),
    section("Nodes", nodes), section("Machine", machine), section("Settings", settings.node));

  async function look() {
    const found = await get("/v2/nereid/server", { signal });
    const url = live.server.url ?? ""; // of the first live figures, which may come later
    replace(about, h("div", { class: "card" }, facts([
      ["Name", found.name], ["Nereid", found.version], ["Data plane", found.data_plane],
      ["Address", elsewhere(url, url, "not known yet")],
      ["Versions served", count(live.server.versions)], ["Requests", rate(live.server.rate)],
      ["API", elsewhere(url && `${url}/docs`, "every path, to try", "not known yet")],
      ["Ray", elsewhere(found.dashboard, "its dashboard", "no dashboard")],
      ["Grafana", elsewhere(found.grafana, "dashboards", "not told by --console-grafana")],
    ])));
    missing.textContent = `Not told in time: ${(found.missing ?? []).join("; ")}`;
    missing.hidden = !found.missing?.length;
    replace(nodes, nodeTable(found.nodes));
    replace(machine, h("div", { class: "card" }, facts(machineRows(found.machine))));
    settings.update(found.settings);
  }

  async function chart() {
    const found = await history("", "", 300, { signal });
    const [all, failed, p50, p99, pending] = drawn.map((name) => found[name]);
    traffic.update({ series: series(["all", "failed"], [all, failed]), ends_at: found.ends_at });
    times.update({ series: series(["p50", "p99"], [p50, p99]), ends_at: found.ends_at });
    waiting.update({ series: series(["pending"], [pending]), ends_at: found.ends_at });
  }

  await repeat(look, signal, trouble(problem), 5000);
  await repeat(chart, signal, () => {}, 2000);
}

function series(names, values = []) {
  return names.map((name, place) => ({ name, values: values[place] ?? [] }));
}

// A link to a page of another program; what is no address of the web is no link.
function elsewhere(url, words, none) {
  if (!/^https?:\/\//.test(url)) return url || none;
  return h("a", { href: url, rel: "noreferrer" }, words);
}

function nodeTable(nodes) {
  const rows = nodes.map((node) => [
    h("span", {}, node.name, " ", h("small", {}, node.id.slice(0, 8))), badge(node.alive ? "Alive" : "Gone", node.alive ? "good" : "bad"),
    [node.head && "head", node.here && "answers here"].filter(Boolean).join(", "), count(node.processors), count(node.gpus),
    node.memory_bytes ? bytes(node.memory_bytes) : "–",
  ]);
  return plainTable("Nodes", ["Node", "State", "Part", "Processors", "GPUs", "Memory"], rows);
}

// The machine's metrics in words: processors, memory, and each GPU.
function machineRows(machine) {
  const first = (name) => machine[name]?.[0]?.value;
  const rows = [];
  if (machine.nv_cpu_utilization) rows.push(["Processors busy", percent(first("nv_cpu_utilization"))]);
  if (machine.nv_cpu_memory_used_bytes) {
    const [used, total] = ["used", "total"].map((kind) => bytes(first(`nv_cpu_memory_${kind}_bytes`)));
    rows.push(["Memory", `${used} of ${total}`]);
  }
  const gpus = machine.nv_gpu_memory_total_bytes ?? [];
  for (const { gpu_uuid: id, value } of gpus) {
    const of = (name) => machine[name]?.find((sample) => sample.gpu_uuid === id)?.value;
    const busy = percent(of("nv_gpu_utilization"));
    rows.push([`GPU ${id}`, `${busy} busy, ${bytes(of("nv_gpu_memory_used_bytes"))} of ${bytes(value)}`]);
  }
  if (!gpus.length && rows.length) rows.push(["GPUs", "none that the server sees"]);
  return rows;
}
