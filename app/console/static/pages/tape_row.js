// A recorded request in full, sent again, and both answers side by side.
import { get, modelPath, post } from "../lib/api.js";
import { badge, button, facts, field, h, link, note, replace, section, select } from "../lib/dom.js";
import { decimal, ms, percent } from "../lib/format.js";
import { live } from "../lib/live.js";
import { modelNav, stylesheet } from "../lib/model_nav.js";
import { plainTable } from "../operate/plain_table.js";
import { responses, tensor } from "../operate/tensors.js";

export async function show(view, { params: { model, row }, signal, title }) {
  stylesheet("operate/operate.css");
  title(`Request ${row}`);
  const path = modelPath(model, "", `tape/${encodeURIComponent(row)}`);
  const found = await get(path, { signal });
  const answers = h("div", { role: "status" });
  view.append(
    modelNav(model, "", "Tape"), h("p", {}, h("a", { href: link("tape", model) }, `All recorded requests of ${model}`)), about(found),
    section("Inputs", found.inputs.map(tensor)), again(found, path, signal, answers), answers, section("Recorded answer", responses(found.responses)),
  );
}

function about(row) {
  const optional = [["Id", row.id], ["Token", row.token], ["Sequence", row.sequence], ["Asked for version", row.asked_version], ["Flags", row.flags.join(", ")], ["Outputs asked for", row.requested.join(", ")]];
  const parameters = Object.keys(row.parameters).length ? [["Parameters", JSON.stringify(row.parameters)]] : [];
  return facts([
    ["Arrived", new Date(row.arrived * 1000).toLocaleString("en-GB")], ["Answered by version", row.version || "–"], ["Took", ms(row.latency_ms)],
    ["Recorded because of", `${row.reason} (probability ${decimal(row.probability)})`], ...optional.filter(([, value]) => value), ...parameters,
  ]);
}

function again(row, path, signal, answers) {
  if (row.why_not) return section("Send it again", note(`It cannot be sent again: ${row.why_not}.`));
  const versions = [...live.models.values()].filter((each) => each.name === row.model && each.version).map((each) => each.version);
  const known = [...new Set([row.version, ...versions].filter(Boolean))];
  const version = select([["", "the one in service"], ...known.map((each) => [each, `version ${each}`])], "");
  const send = button("Send again", async () => {
    const found = await post(`${path}/replay`, { version: version.value }, { signal });
    replace(answers, side(row, found));
  }, { kind: "primary" });
  return section("Send it again", h("div", { class: "search" }, field("To", version), send));
}

function side(row, found) {
  const failed = [row.responses, found.responses].some((all) => all.some((each) => each.code));
  const bad = found.compared.some((each) => each.fault);
  const words = failed ? note("One of the answers is a failure.", "bad")
    : bad ? note("The answers differ.", "bad") : found.compared.length ? note("Both answers are the same, within the tolerances of rollouts.", "good") : note("There is nothing to compare.");
  const rows = found.compared.map((each) => [
    found.responses.length > 1 ? `${each.output} (response ${each.response})` : each.output,
    each.fault ? badge(each.fault, "bad") : badge("as recorded", "good"), decimal(each.absolute > 1e29 ? null : each.absolute), decimal(each.cosine), percent(each.within),
  ]);
  const lost = found.not_compared.length ? note(`The tape does not have the values of ${found.not_compared.join(", ")}.`) : null;
  const left = found.left_out ? note(`${found.left_out} responses are too many or too large to be shown.`) : null;
  return section("Side by side", words, lost, left,
    rows.length ? plainTable("Differences by output", ["Output", "Finding", "Largest difference", "Cosine", "Elements within"], rows) : null,
    h("div", { class: "columns" },
      h("section", { class: "card" }, h("h3", {}, `Recorded, version ${row.version || "–"}`), responses(row.responses)),
      h("section", { class: `card ${bad || failed ? "differs" : "same"}` }, h("h3", {}, `Now, version ${found.version || "–"}`), responses(found.responses))));
}
