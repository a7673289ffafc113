// An answer for a person: classes with their labels, pictures, texts and tables.
import { h, svg } from "../lib/dom.js";
import { count, decimal } from "../lib/format.js";
import { pictureOf } from "../tensors/pictures.js";
import { dims, product } from "../tensors/values.js";

const MOST_ROWS = 50;
const MOST_COLUMNS = 16;
const LINE = 10;
const MOST_TEXT = 20000;
const decoder = new TextDecoder("utf-8", { fatal: true });

// Returns nodes for an answer's outputs. classes: the names of those that are classes; picture: what was asked
// about, a canvas or an <img>, or null.
export function outputNodes(outputs, { classes = new Set(), picture = null } = {}) {
  const boxes = picture && boxesNode(outputs, picture);
  const nodes = outputs.map((output) => {
    const about = h("span", { class: "quiet mono" }, ` ${output.datatype} ${dims(output.shape)}`);
    return h("div", { class: "output" }, h("h3", {}, output.name, about), ...content(output, classes.has(output.name)));
  });
  return boxes ? [boxes, ...nodes] : nodes;
}

function content(output, isClasses) {
  if (!output.elements.length) return [h("p", { class: "quiet" }, "No values.")];
  if (isClasses) return [classTable(output)];
  if (output.datatype === "BYTES") return textNodes(output);
  const picture = pictureOf(output);
  return picture ? [pictureNode(picture, output.name), folded("Values", valueTable(output))] : [valueTable(output)];
}

function folded(title, ...nodes) {
  return h("details", {}, h("summary", {}, title), ...nodes);
}

// The classification extension: "score:index" or "score:index:label" each.
function classTable({ elements }) {
  const rows = Array.from(elements, (each) => {
    const [score, index, ...label] = asText(each).split(":");
    return { score: Number(score), index, label: label.join(":") };
  });
  const most = Math.max(...rows.map(({ score }) => Math.abs(score)), 1e-9);
  const cells = rows.map(({ score, index, label }) => {
    const share = `${Math.max(0, Math.round((score / Math.max(most, 1)) * 100))}`;
    const bar = svg("svg", { viewBox: "0 0 100 8", class: "share", "aria-hidden": "true", preserveAspectRatio: "none" },
      svg("rect", { width: share, height: 8, rx: 2 }));
    return h("tr", {}, h("th", { scope: "row" }, label || `class ${index}`), h("td", { class: "right" }, decimal(score)),
      h("td", { class: "shares" }, bar), h("td", { class: "right quiet" }, index));
  });
  const heads = ["Class", "Score", "", "Index"].map((each, place) => {
    return h(each ? "th" : "td", { scope: each ? "col" : null, class: place % 2 ? "right" : null }, each);
  });
  return h("table", { class: "classes" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, cells));
}

export function asText(value) {
  return typeof value === "string" ? value : new TextDecoder().decode(value);
}

function textNodes({ elements }) {
  const shown = Array.from(elements.slice(0, MOST_ROWS), textNode);
  const more = elements.length - shown.length;
  const list = shown.length === 1 ? shown : [h("ol", { class: "texts" }, shown.map((each) => h("li", {}, each)))];
  return more > 0 ? [...list, h("p", { class: "quiet" }, `and ${count(more)} more`)] : list;
}

function textNode(value) {
  if (typeof value === "string") return h("pre", { tabindex: "0" }, value.slice(0, MOST_TEXT));
  const kind = imageKind(value);
  if (kind) {
    const url = URL.createObjectURL(new Blob([value], { type: kind }));
    return h("img", { src: url, alt: "A picture in the answer", class: "answer-picture" });
  }
  try {
    return h("pre", { tabindex: "0" }, decoder.decode(value.subarray(0, MOST_TEXT)));
  } catch {
    const first = Array.from(value.subarray(0, 64), (each) => each.toString(16).padStart(2, "0")).join(" ");
    const more = value.length > 64 ? " …" : "";
    return h("pre", { tabindex: "0" }, `${count(value.length)} bytes that are no text: ${first}${more}`);
  }
}

function imageKind(bytes) {
  if (bytes[0] === 0x89 && bytes[1] === 0x50 && bytes[2] === 0x4e && bytes[3] === 0x47) return "image/png";
  return bytes[0] === 0xff && bytes[1] === 0xd8 && bytes[2] === 0xff ? "image/jpeg" : "";
}

function pictureNode({ data, width, height, low, high }, name) {
  const canvas = answerCanvas({ width, height }, `${name} as a picture`);
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
  const words = `${width} × ${height}; black is ${decimal(low)}, white is ${decimal(high)}`;
  return h("figure", { class: "drawn" }, canvas, h("figcaption", { class: "quiet" }, words));
}

function answerCanvas(size, label) {
  return h("canvas", { ...size, class: "answer-picture", role: "img", aria: { label } });
}

// Numbers as a table: a row for each place of the dimensions before the last.
export function valueTable({ elements, shape }) {
  if (elements.length === 1) return h("p", { class: "figure" }, number(elements[0]));
  const flat = shape.length < 2 || product(shape.slice(0, -1)) === 1; // a row: shown in lines
  const columns = flat ? LINE : shape[shape.length - 1];
  const total = Math.ceil(elements.length / Math.max(1, columns));
  const rows = [];
  for (let row = 0; row < Math.min(total, MOST_ROWS); row += 1) {
    const values = Array.from(elements.slice(row * columns, row * columns + Math.min(columns, MOST_COLUMNS)), number);
    const cells = values.map((each) => h("td", { class: "right" }, each));
    const head = h("th", { scope: "row", class: "quiet" }, flat ? row * LINE : placeOf(row, shape));
    rows.push(h("tr", {}, head, cells, columns > MOST_COLUMNS ? h("td", {}, "…") : null));
  }
  const region = { class: "values", tabindex: "0", role: "region", aria: { label: "Values" } };
  return h("div", {}, h("div", region, h("table", {}, h("tbody", {}, rows))), summary(elements, total));
}

function summary(elements, total) {
  const numbers = Array.from(elements.slice(0, 1e6), Number).filter(Number.isFinite);
  const left = total > MOST_ROWS ? `The first ${MOST_ROWS} of ${count(total)} rows. ` : "";
  const folded = (act) => decimal(numbers.reduce(act));
  const mean = decimal(numbers.reduce((one, other) => one + other, 0) / numbers.length);
  const words = numbers.length
    ? `: least ${folded((one, other) => Math.min(one, other))}, mean ${mean}, ` +
      `most ${folded((one, other) => Math.max(one, other))}` : "";
  return h("p", { class: "quiet" }, `${left}${count(elements.length)} values${words}`);
}

function number(value) {
  if (typeof value !== "number") return String(value);
  return Number.isSafeInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
}

function placeOf(row, shape) {
  const found = [];
  for (const size of shape.slice(0, -1).reverse()) {
    found.unshift(row % size);
    row = Math.floor(row / size);
  }
  return found.join(", ");
}

// The picture with the boxes of the answer: left, top, right and bottom in its pixels.
function boxesNode(outputs, picture) {
  const boxes = outputs.find(({ name, shape }) => /box/i.test(name) && shape.length >= 2 && shape.at(-1) === 4);
  const width = picture.naturalWidth ?? picture.width;
  const height = picture.naturalHeight ?? picture.height;
  if (!boxes || !boxes.elements.length || !width) return null;
  const canvas = answerCanvas({ width, height }, `The picture with ${boxes.elements.length / 4} boxes`);
  const pen = canvas.getContext("2d");
  pen.drawImage(picture, 0, 0, width, height);
  pen.lineWidth = Math.max(2, width / 250);
  pen.strokeStyle = "#00d0e8";
  for (let at = 0; at + 3 < boxes.elements.length; at += 4) {
    const [left, top, right, bottom] = Array.from(boxes.elements.slice(at, at + 4), Number);
    pen.strokeRect(left, top, right - left, bottom - top);
  }
  return h("figure", { class: "drawn" }, canvas);
}

// A line of one value of each answer of a sequence or a stream, oldest first.
export function spark(values, name) {
  const low = Math.min(0, ...values);
  const high = Math.max(...values, low + 1e-9);
  const x = (place) => (place / Math.max(1, values.length - 1)) * 300;
  const y = (value) => 58 - ((value - low) / (high - low)) * 56;
  const points = values.map((value, place) => `${x(place)},${y(value)}`);
  const range = `from ${decimal(Math.min(...values))} to ${decimal(Math.max(...values))}`;
  const told = `${name} over ${values.length} answers: ${range}, last ${decimal(values.at(-1))}`;
  const line = svg("polyline", { points: points.join(" "), class: "line s0" });
  const area = { viewBox: "0 0 300 60", role: "img", "aria-label": told, preserveAspectRatio: "none" };
  return h("figure", { class: "chart spark" }, h("figcaption", {}, told), svg("svg", area, line));
}
