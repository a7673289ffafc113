// A page of one model that was asked for without a model: all models, to choose one of.
import { h, link } from "../lib/dom.js";
import { percent } from "../lib/format.js";
import { live } from "../lib/live.js";
import { dataTable } from "../lib/table.js";

// page: the first segment of the page's address.
export function chooseModel(view, signal, page, about) {
  const table = dataTable({
    label: "Models",
    columns: [
      { key: "name", title: "Model", node: (row) => h("a", { href: link(page, row.name) }, row.name) },
      { key: "versions", title: "Versions", text: (row) => row.versions.join(", ") },
      { key: "traffic", title: "Traffic", text: (row) => row.traffic, hide_narrow: true },
    ],
    key: (row) => row.name,
    filter: (row) => row.name,
    open: (row) => link(page, row.name),
  });
  view.append(h("p", { class: "quiet" }, about), table.node);
  live.watch(() => {
    if (live.changed.length || live.gone.length) table.update(models());
  }, signal);
}

function models() {
  const found = new Map();
  for (const row of live.models.values()) {
    const model = found.get(row.name) ?? { name: row.name, versions: [], shares: [] };
    if (row.version) model.versions.push(row.version);
    if (row.weight !== null && row.weight !== undefined) model.shares.push(`${row.version}: ${percent(row.weight)}`);
    found.set(row.name, model);
  }
  return [...found.values()].map((model) => ({ ...model, traffic: model.shares.join(", ") }));
}
