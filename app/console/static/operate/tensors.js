// Recorded tensors: their values as text, or what is kept instead.
import { badge, h } from "../lib/dom.js";
import { bytes, count } from "../lib/format.js";

const KEPT = { size: "only its size was recorded", hash: "only hashes were recorded", omitted: "too large to be recorded" };

export function tensor(found) {
  const head = h("h3", {}, found.name, " ", h("small", {}, `${found.datatype} [${found.shape.join(", ")}] · ${bytes(found.bytes)}`));
  if (found.error) return h("div", {}, head, h("p", { class: "bad" }, found.error));
  if (!found.data) return h("div", {}, head, h("p", {}, badge(KEPT[found.state] ?? found.state, "busy")));
  const more = found.values > found.data.length ? `\n… ${count(found.values)} values in all` : "";
  return h("div", {}, head, h("pre", { class: "values", tabindex: "0", aria: { label: `Values of ${found.name}` } }, text(found) + more));
}

function text({ data, datatype }) {
  return datatype === "BYTES" ? data.map((each) => JSON.stringify(each)).join("\n") : data.join(", ");
}

// The responses of a request.
export function responses(found) {
  if (!found.length) return [h("p", { class: "quiet" }, "No response with outputs.")];
  return found.map((each, place) => h("div", {},
    found.length > 1 ? h("h3", {}, `Response ${place + 1}, after ${Number(each.offset_ms.toPrecision(3))} ms`) : null,
    each.code ? h("p", { class: "text bad" }, `${each.code}: ${each.error}`) : null,
    each.outputs.map(tensor)));
}
