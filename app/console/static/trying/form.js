// The form of a model: its inputs, what is asked of its outputs, and the requests that it makes.
import { field, h, select } from "../lib/dom.js";
import { inputField } from "./inputs.js";

const SOME = ["3", "5", "10"].map((number) => [number, `the ${number} best classes`]);
const CLASSES = [["0", "values"], ["1", "the best class"], ...SOME];

// Returns { node, read, picture, sound }.
//
// read: resolves to { inputs, outputs, parameters } of requests.js.
// picture: what the request is about, to draw on; sound: the editor that goes on piece by piece, or null.
export function makeForm(form) {
  const rates = form.inputs.filter((each) => each.rate);
  const known = { sequences: form.sequences, hasRate: rates.length > 0, rate: () => null };
  const inputs = [];
  known.rate = () => {
    const text = inputs.find(({ spec }) => spec === rates[0])?.node.querySelector("textarea")?.value ?? "";
    return Number(text.match(/\d+/)?.[0]) || null;
  };
  inputs.push(...form.inputs.map((spec) => inputField(spec, known)));
  const wanted = form.decoupled ? [] : form.outputs.filter((each) => each.classes).map(wantedOf);
  const asks = h("fieldset", { class: "tensor" }, h("legend", {}, "Answer"), wanted.map(({ node }) => node));
  return {
    node: h("div", {}, inputs.map(({ node }) => node), wanted.length ? asks : null),
    read: async () => ({
      inputs: (await Promise.all(inputs.map((each) => each.read()))).filter(Boolean),
      outputs: form.outputs.map((spec) => {
        return { name: spec.name, datatype: spec.datatype, classes: classesOf(wanted, spec) };
      }),
      parameters: {},
    }),
    get picture() {
      return inputs.map(({ editor }) => editor.picture).find(Boolean) ?? null;
    },
    get sound() {
      return inputs.map(({ editor }) => editor).find((editor) => editor.step) ?? null;
    },
  };
}

function wantedOf(spec) {
  const choice = select(CLASSES, spec.labels ? "5" : "0");
  return { spec, choice, node: field(spec.name, choice, spec.labels ? `labels: ${spec.labels}` : "") };
}

function classesOf(wanted, spec) {
  return Number(wanted.find((each) => each.spec === spec)?.choice.value ?? 0);
}
