// Requests and answers of the v2 protocol: a JSON header, and large tensors as bytes behind it. Pure.
import { decode, encode, inJson } from "./datatypes.js";
import { product } from "./values.js";

const LENGTH = "Inference-Header-Content-Length";
// Values that are written as JSON; more go as bytes.
const MOST_IN_JSON = 1024;

// An input as it is sent: { name, datatype, shape, elements } or, of a file or a picture, { ..., bytes }.
export const isInline = ({ bytes, datatype, elements }) =>
  !bytes && inJson(datatype) && elements.length <= MOST_IN_JSON && Array.prototype.every.call(elements, plain);

// JSON has no NaN, and bytes that are no text are no string.
const plain = (each) => (typeof each === "number" ? Number.isFinite(each) : !(each instanceof Uint8Array));

export const bytesOfInput = ({ bytes, datatype, elements }) => bytes ?? encode(datatype, elements);

// Returns { headers, body } of an inference.
//
// inputs: see above. outputs: [{ name, classes }], of which classes are asked for where `classes` is not 0.
// binary: whether the answer's tensors are bytes, too.
export function inference(request) {
  const parts = request.inputs.filter((each) => !isInline(each)).map(bytesOfInput);
  const text = header(request, parts.map((part) => part.length));
  const json = { "Content-Type": "application/json" };
  if (!parts.length) return { headers: json, body: text };
  const head = new TextEncoder().encode(text);
  const headers = { "Content-Type": "application/octet-stream", [LENGTH]: String(head.length) };
  return { headers, body: joined([head, ...parts]) };
}

export function joined(parts) {
  const body = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (body.set(part, at), at + part.length), 0);
  return body;
}

// Returns the JSON of a request whose tensors behind it have these sizes. Written by hand: JSON.stringify
// knows no integers of 64 bits.
export function header({ inputs, outputs = [], parameters = {}, id = "", binary = true }, sizes) {
  const left = [...sizes];
  const tensors = inputs.map((each) => tensor(each, isInline(each) ? null : left.shift()));
  const wanted = outputs.map(({ name, classes }) => {
    const asked = { ...(binary ? { binary_data: true } : {}), ...(classes ? { classification: classes } : {}) };
    return JSON.stringify({ name, parameters: asked });
  });
  const all = binary && !outputs.length ? { ...parameters, binary_data_output: true } : parameters;
  const fields = [
    id && `"id": ${JSON.stringify(id)}`,
    `"inputs": [${tensors.join(", ")}]`,
    wanted.length && `"outputs": [${wanted.join(", ")}]`,
    Object.keys(all).length && `"parameters": ${spelled(all)}`,
  ];
  return `{${fields.filter(Boolean).join(", ")}}`;
}

function tensor({ name, datatype, shape, elements }, size) {
  const head = JSON.stringify({ name, datatype, shape }).slice(0, -1);
  return size === null ? `${head},"data":${data(elements)}}` : `${head},"parameters":{"binary_data_size":${size}}}`;
}

export function data(elements) {
  const texts = Array.from(elements, (each) => (typeof each === "bigint" ? String(each) : JSON.stringify(each)));
  return `[${texts.join(", ")}]`;
}

function spelled(parameters) {
  const rows = Object.entries(parameters).map(([key, value]) => {
    return `${JSON.stringify(key)}: ${typeof value === "bigint" ? value : JSON.stringify(value)}`;
  });
  return `{${rows.join(", ")}}`;
}

// Returns the body of a request with any number of answers: names and values; no shapes, and no bytes.
export function generation(inputs, parameters = {}) {
  const unfit = inputs.find((each) => !inJson(each.datatype));
  if (unfit) throw new Error(`${unfit.datatype} cannot be sent to a model that streams its answers over HTTP.`);
  const rows = inputs.map(({ name, datatype, elements, bytes }) => {
    const values = elements ?? decode(datatype, bytes);
    const texts = datatype === "BYTES" ? Array.from(values, text) : values;
    const all = data(texts);
    return `${JSON.stringify(name)}: ${texts.length === 1 ? all.slice(1, -1) : all}`;
  });
  const own = Object.entries(parameters).map(([key, value]) => `${JSON.stringify(key)}: ${JSON.stringify(value)}`);
  return `{${[...rows, ...own].join(", ")}}`;
}

function text(value) {
  return value instanceof Uint8Array ? new TextDecoder().decode(value) : value;
}

// Returns the answer { model_name, model_version, outputs: [{ name, datatype, shape, elements }], ... }.
export function answer(buffer, headers) {
  const bytes = new Uint8Array(buffer);
  const size = Number(headers.get(LENGTH) ?? bytes.length);
  const found = JSON.parse(new TextDecoder().decode(bytes.subarray(0, size)));
  let at = size;
  for (const output of found.outputs ?? []) {
    const length = output.parameters?.binary_data_size;
    if (length === undefined) {
      output.elements = [output.data ?? []].flat(Infinity);
      continue;
    }
    output.elements = decode(output.datatype, bytes.subarray(at, at + length));
    at += length;
  }
  return found;
}

// Returns an event of a stream in the same form; its data says nothing of shapes.
export function event(text, specs) {
  const found = JSON.parse(text);
  if (found.error !== undefined) throw new Error(String(found.error));
  const outputs = specs.filter(({ name }) => name in found).map(({ name, datatype, shape }) => {
    const elements = [found[name]].flat();
    const open = shape.filter((size) => size < 0).length;
    const known = product(shape.filter((size) => size >= 0));
    const sizes = open === 1 && known ? shape.map((size) => (size < 0 ? elements.length / known : size)) : shape;
    return { name, datatype, shape: product(sizes) === elements.length ? sizes : [elements.length], elements };
  });
  return { ...found, outputs };
}
