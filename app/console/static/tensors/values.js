// What a person writes of a tensor, as a shape and its elements: JSON arrays, nested or flat. Pure.
import { element, is64 } from "./datatypes.js";

export const product = (sizes) => sizes.reduce((all, size) => all * size, 1);

// Returns { shape, elements } of a JSON text.
//
// shape: as the model has it, -1 for what is open. A nested array says its shape itself; a flat one has that
// of `chosen`, in which one size that is null is what the number of values makes it.
export function read(text, datatype, shape, chosen) {
  const found = parsed(text, datatype);
  const flat = [];
  const own = flatten(found, flat);
  if (own.length === shape.length) return fitting(own, shape, flat, datatype);
  if (own.length > 1) {
    throw new Error(`The values have ${own.length} dimensions, and the input has ${shape.length}`);
  }
  return fitting(completed(chosen, flat.length), shape, flat, datatype);
}

function parsed(text, datatype) {
  const quoted = datatype === "BYTES" ? text : quote(text, datatype);
  try {
    return JSON.parse(quoted);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
}

// Whole numbers of 64 bits are more than JSON.parse keeps, and it knows no NaN: both as strings.
function quote(text, datatype) {
  if (/["']/.test(text)) return text;
  const words = text.replace(/-?\b(?:NaN|Infinity)\b/g, '"$&"');
  return is64(datatype) ? words.replace(/(?<![\d.eE+-])-?\d+(?![\d.eE])/g, '"$&"') : words;
}

function flatten(value, into) {
  if (!Array.isArray(value)) {
    into.push(value);
    return [];
  }
  let inner = null;
  for (const each of value) {
    const sizes = flatten(each, into);
    if (inner !== null && String(inner) !== String(sizes)) {
      throw new Error("Arrays beside each other differ in length");
    }
    inner = sizes;
  }
  return [value.length, ...(inner ?? [])];
}

function completed(chosen, count) {
  const open = chosen.filter((size) => size === null).length;
  const known = product(chosen.filter((size) => size !== null));
  if (open === 0) return chosen;
  if (open > 1) throw new Error("Say all open dimensions but one, or write nested arrays");
  if (!known || count % known) throw new Error(`${count} values do not fill rows of ${known}`);
  return chosen.map((size) => size ?? count / known);
}

function fitting(own, shape, flat, datatype) {
  const fits = own.every((size, place) => shape[place] === -1 || shape[place] === size);
  const count = product(own);
  if (!fits) throw new Error(`The input takes ${dims(shape)}, and this is ${dims(own)}`);
  if (count !== flat.length) {
    throw new Error(`${dims(own)} are ${count} values, and there are ${flat.length}`);
  }
  return { shape: own, elements: flat.map((each) => element(datatype, each)) };
}

export function dims(shape) {
  return shape.length ? shape.map((size) => (size < 0 ? "any" : size)).join(" × ") : "one value";
}

// Returns elements as a JSON text, in lines by the last dimension; 64-bit integers in all their digits.
export function written(elements, shape) {
  const digits = Array.from(elements, (each) => (typeof each === "bigint" ? String(each) : JSON.stringify(each)));
  if (shape.length < 2) return `[${digits.join(", ")}]`;
  return nested(digits, shape, "");
}

function nested(digits, shape, indent) {
  const [size, ...rest] = shape;
  if (!rest.length) return `${indent}[${digits.join(", ")}]`;
  const each = product(rest);
  if (rest.length === 1 && size === 1) return `${indent}[${nested(digits, rest, "")}]`;
  const rows = [];
  for (let row = 0; row < size; row += 1) {
    rows.push(nested(digits.slice(row * each, (row + 1) * each), rest, `${indent} `));
  }
  return `${indent}[\n${rows.join(",\n")}\n${indent}]`;
}
