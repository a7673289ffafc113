// The editors of a form: a field for each input, by what it is for a person (kinds.js).
import { field, h, replace, select } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { element, encode, isInteger } from "../tensors/datatypes.js";
import { leastShape } from "../tensors/kinds.js";
import { pictureEditor } from "./picture_editor.js";
import { soundEditor } from "./sound_editor.js";
import { dims, product, read, written } from "../tensors/values.js";

// Values that stand in a field of text; more are made, not written.
const MOST_WRITTEN = 2048;
const MOST_MADE = 5_000_000;
const WORDS = {
  picture: "a picture", sound: "sound", values: "values (JSON)",
  text: "one text", texts: "texts (JSON)", file: "a file",
};
const EDITORS = {
  picture: pictureEditor, sound: soundEditor, values: valuesEditor,
  text: textEditor, texts: valuesEditor, file: fileEditor,
};

// Returns { spec, node, read, editor }: `read` resolves to an input of requests.js, or null if it is left out.
//
// form: what the editors know of each other: { sequences, rate() }.
export function inputField(spec, form) {
  const place = h("div");
  const kind = select(spec.kinds.map((each) => [each, WORDS[each]]), spec.kind);
  const sent = h("input", { type: "checkbox", checked: !spec.optional });
  const made = { spec, editor: null };
  const show = () => {
    made.editor = EDITORS[kind.value](spec, form);
    replace(place, made.editor.node);
  };
  kind.addEventListener("change", show);
  sent.addEventListener("change", () => (place.hidden = !sent.checked));
  place.hidden = spec.optional;
  kind.setAttribute("aria-label", `How to give ${spec.name}`);
  const facts = h("span", { class: "quiet mono" }, `${spec.datatype} ${dims(spec.shape)}`);
  const choice = spec.kinds.length > 1 ? kind : null;
  const leave = spec.optional ? h("label", { class: "check" }, sent, "send it") : null;
  const about = h("div", { class: "about" }, facts, choice, leave);
  made.node = h("fieldset", { class: "tensor" }, h("legend", {}, h("b", {}, spec.name)), about, place);
  made.read = async () => {
    if (spec.optional && !sent.checked) return null;
    try {
      return { name: spec.name, datatype: spec.datatype, ...(await made.editor.read()) };
    } catch (error) {
      throw new Error(`${spec.name}: ${error.message}`);
    }
  };
  show();
  return made;
}

// A JSON array, with a field for each dimension that the model leaves open.
function valuesEditor(spec) {
  const area = h("textarea", { rows: "2", spellcheck: "false", aria: { label: `Values of ${spec.name}` } });
  const many = h("p", { class: "quiet" });
  const problem = h("p", { class: "bad", role: "status" });
  const ways = [["first", `all ${spec.first}`], ["0", "zeros"], ["count", "0, 1, 2 …"], ["random", "random"]];
  const fill = select(ways, "first");
  const sizes = leastShape(spec.shape);
  const state = { touched: false, made: null };
  const fields = sizeFields(spec, sizes, () => (state.touched && product(sizes) <= MOST_WRITTEN ? check() : refill()));
  const refill = () => {
    state.touched = false;
    const made = filled(spec, product(sizes), fill.value);
    const large = made.length > MOST_WRITTEN;
    state.made = large ? made : null;
    area.hidden = large;
    area.value = large ? "" : written(made, sizes);
    area.rows = Math.min(10, area.value.split("\n").length + 1);
    many.textContent = large ? `${count(made.length)} values: ${fill.selectedOptions[0].textContent}` : "";
    check();
  };
  const readNow = () => {
    if (state.made) return { shape: [...sizes], elements: state.made };
    const found = read(area.value, spec.datatype, spec.shape, sizes);
    fields.show(found.shape);
    return found;
  };
  function check() {
    try {
      readNow();
      problem.textContent = "";
    } catch (error) {
      problem.textContent = error.message;
    }
  }
  area.addEventListener("input", () => ((state.touched = true), check()));
  fill.addEventListener("change", refill);
  refill();
  const numbers = spec.datatype !== "BYTES" && h("label", { class: "check" }, "fill with ", fill);
  const node = h("div", {}, h("div", { class: "about" }, fields.node, numbers), area, many, problem);
  return { node, read: async () => readNow() };
}

// Number fields of the open dimensions; the others are words. `sizes` is changed in place.
function sizeFields(spec, sizes, changed) {
  const inputs = new Map();
  for (const [place, size] of spec.shape.entries()) {
    if (size >= 0) continue;
    const label = `Dimension ${place + 1} of ${spec.name}`;
    const input = h("input", { type: "number", min: "0", max: MOST_MADE, value: sizes[place], aria: { label } });
    input.addEventListener("change", () => {
      sizes[place] = Math.max(0, Math.floor(Number(input.value)) || 0);
      if (product(sizes) > MOST_MADE) sizes[place] = Number((input.value = 1));
      changed();
    });
    inputs.set(place, input);
  }
  const parts = spec.shape.flatMap((size, place) => [place ? " × " : "", inputs.get(place) ?? String(size)]);
  const node = inputs.size ? h("span", { class: "sizes" }, "shape ", parts) : null;
  const show = (shape) => {
    for (const [place, input] of inputs) {
      sizes[place] = shape[place];
      if (document.activeElement !== input) input.value = String(shape[place]);
    }
  };
  return { node, show };
}

function filled(spec, size, how) {
  const { datatype } = spec;
  const first = datatype === "BYTES" ? (size > 1 ? "1" : "hello") : spec.first;
  const most = { BOOL: 2, UINT8: 256, INT8: 128, UINT16: 65536, INT16: 32768, FP16: 2048 }[datatype] ?? Infinity;
  const whole = datatype === "BOOL" || isInteger(datatype);
  const made = {
    first: () => first,
    0: () => 0,
    count: (place) => place % most,
    random: () => (whole ? Math.floor(Math.random() * Math.min(most, 100)) : Number(Math.random().toFixed(4))),
  }[how];
  return Array.from({ length: size }, (_, place) => element(datatype, made(place)));
}

function textEditor(spec) {
  const area = h("textarea", { rows: "3", value: "hello", aria: { label: `Text of ${spec.name}` } });
  return { node: area, read: async () => ({ shape: spec.shape.map(() => 1), elements: [area.value] }) };
}

const FILES = { "image/*": "Picture", "audio/*": "Sound" };

// A file as one element: a picture with its thumbnail, a sound with its controls, or any other.
function fileEditor(spec) {
  const input = h("input", { type: "file", accept: spec.accept || null });
  const preview = h("div", { class: "preview" });
  const made = { picture: null };
  let bytes = null;
  input.addEventListener("change", async () => {
    const [file] = input.files;
    bytes = file ? new Uint8Array(await file.arrayBuffer()) : null;
    made.picture = null;
    replace(preview, file && seen(file, made));
  });
  return Object.assign(made, {
    node: h("div", {}, field(FILES[spec.accept] ?? "File", input), preview),
    read: async () => {
      if (!bytes) throw new Error("choose a file");
      const shape = spec.shape.map(() => 1);
      return { shape, elements: [bytes], bytes: encode("BYTES", [bytes]), file: input.files[0].name };
    },
  });
}

function seen(file, made) {
  const url = URL.createObjectURL(file);
  const about = h("p", { class: "quiet" }, `${file.name}, ${count(file.size)} bytes`);
  if (file.type.startsWith("image/")) {
    const picture = h("img", { src: url, alt: `The chosen picture ${file.name}`, class: "thumbnail" });
    made.picture = picture;
    return [picture, about];
  }
  if (file.type.startsWith("audio/")) {
    return [h("audio", { src: url, controls: true, aria: { label: file.name } }), about];
  }
  URL.revokeObjectURL(url);
  return about;
}
