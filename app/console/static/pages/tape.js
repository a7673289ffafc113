// Recorded requests: of which models there are any, and those of one model by conditions.
import { get, modelPath } from "../lib/api.js";
import { badge, button, field, h, link, note, replace } from "../lib/dom.js";
import { clock, count, ms } from "../lib/format.js";
import { modelNav, stylesheet } from "../lib/model_nav.js";
import { dataTable } from "../lib/table.js";

const CONDITIONS = "failed · latency_ms>50 · version=2 · since=1h · id=order-4711 · token=web · replayable, joined by commas";

export async function show(view, { params: { model }, signal, title }) {
  stylesheet("operate/operate.css");
  if (!model) await models(view, signal, title);
  else await rows(view, model, signal, title);
}

async function models(view, signal, title) {
  title("Tape");
  const found = await get("/v2/nereid/tape", { signal });
  view.append(h("p", { class: "quiet" }, "Requests that the node that answers here has recorded (--tape)."));
  if (!found.models.length) view.append(note("Nothing has been recorded yet."));
  else {
    view.append(dataTable({
      label: "Recorded models",
      columns: [
        { key: "model", title: "Model", node: (row) => h("a", { href: link("tape", row.model) }, row.model) },
        { key: "rows", title: "Rows", align: "right", text: (row) => count(row.rows) },
      ],
      key: (row) => row.model, rows: found.models, filter: (row) => row.model, open: (row) => link("tape", row.model),
    }).node);
  }
}

const columns = [
  { key: "arrived", title: "Arrived", text: (row) => `${clock(row.arrived)} ${new Date(row.arrived * 1000).toLocaleDateString("en-GB")}` },
  { key: "version", title: "Version", align: "right" },
  { key: "latency_ms", title: "Took", align: "right", text: (row) => ms(row.latency_ms) },
  { key: "failed", title: "Answer", node: (row) => (row.failed ? badge("failed", "bad") : badge("ok", "good")) },
  { key: "id", title: "Id", text: (row) => shortened(row.id, 24) },
  { key: "inputs", title: "Inputs", text: (row) => shortened(row.inputs, 40), hide_narrow: true },
  { key: "answer", title: "Outputs", text: (row) => shortened(row.answer, 40), hide_narrow: true },
  { key: "token", title: "Token", text: (row) => shortened(row.token, 20), hide_narrow: true },
  { key: "reason", title: "Chosen", hide_narrow: true },
];

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

async function rows(view, model, signal, title) {
  title(`Tape of ${model}`);
  const where = h("input", { type: "search", spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  const told = h("p", { class: "quiet", role: "status" });
  const more = button("Older ones", () => look(before), {});
  const table = dataTable({ label: "Recorded requests", columns, key: (row) => row.key, rows: [], sort: ["arrived", "desc"], open: (row) => link("tape", model, row.key) });
  let before = "";
  let shown = [];
  let looked = 0;

  async function look(from) {
    const query = new URLSearchParams({ where: where.value, before: from });
    const found = await get(`${modelPath(model, "", "tape")}?${query}`, { signal });
    shown = from ? [...shown, ...found.rows] : found.rows;
    looked = from ? looked + found.looked : found.looked;
    before = found.before;
    more.hidden = !before;
    replace(told, `${count(shown.length)} found, ${count(looked)} looked at${before ? "" : ", which are all"}`);
    table.update(shown);
  }

  const search = h("form", { class: "search", on: { submit: (event) => { event.preventDefault(); find.click(); } } });
  const find = button("Find", () => look(""), { kind: "primary" });
  search.append(field("Conditions", where, CONDITIONS), find);
  view.append(modelNav(model, "", "Tape"), search, told, table.node, h("div", { class: "buttons" }, more));
  await look("");
}
