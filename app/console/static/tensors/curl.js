// A request as a line of shell. Pure.
import { inJson } from "./datatypes.js";
import { bytesOfInput, generation, header, isInline } from "./requests.js";

// Bytes that are written as escapes; more are read from a file.
const MOST_ESCAPED = 64;

export const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
export const fileName = (name) => `${name.replace(/[^\w.-]+/g, "_").replace(/^[.-]+/, "") || "input"}.bin`;
export const path = ({ model, version }) =>
  `/v2/models/${encodeURIComponent(model)}${version ? `/versions/${encodeURIComponent(version)}` : ""}`;
const token = (tokens) => (tokens ? ' -H "Authorization: Bearer $NEREID_TOKEN"' : "");

// Returns { text, files }.
export function curl(request) {
  const ask = `curl -sS${token(request.tokens)}`;
  const at = quoted(`${request.url}${path(request)}`).slice(0, -1);
  if (request.decoupled) {
    const body = generation(request.inputs, sequence(request));
    return { text: `${ask} -N ${at}/generate_stream' \\\n  -d ${quoted(body)}`, files: [] };
  }
  const { parts, files, sizes } = pieces(request.inputs);
  const outputs = request.outputs.filter((each) => each.classes);
  const half = !outputs.length && request.outputs.some((each) => !inJson(each.datatype));
  const text = header({ ...request, outputs, parameters: sequence(request), binary: half }, sizes);
  const end = half ? " --output answer.bin" : "";
  if (!parts.length) return { text: `${ask} ${at}/infer' \\\n  -d ${quoted(text)}${end}`, files };
  const length = new TextEncoder().encode(text).length;
  const body = [`printf %s ${quoted(text)}`, ...parts].join("; ");
  const send = `${ask} ${at}/infer' \\\n  -H 'Inference-Header-Content-Length: ${length}' --data-binary @-${end}`;
  return { text: `(${body}) |\n  ${send}`, files };
}

export function sequence({ parameters, sequence: id }) {
  return id === null ? parameters : { ...parameters, sequence_id: id, sequence_start: true, sequence_end: true };
}

// The bytes behind the JSON: commands that print them, and the files that these read.
function pieces(inputs) {
  const parts = [];
  const files = [];
  const sizes = [];
  for (const input of inputs.filter((each) => !isInline(each))) {
    const bytes = bytesOfInput(input);
    sizes.push(bytes.length);
    if (input.file) {
      parts.push(`printf ${quoted(escapes(bytes.subarray(0, 4)))}`, `cat ${quoted(`./${input.file}`)}`);
    } else if (bytes.length <= MOST_ESCAPED) {
      parts.push(`printf ${quoted(escapes(bytes))}`);
    } else {
      files.push({ name: fileName(input.name), bytes });
      parts.push(`cat ${fileName(input.name)}`);
    }
  }
  return { parts, files, sizes };
}

function escapes(bytes) {
  return Array.from(bytes, (each) => `\\${each.toString(8).padStart(3, "0")}`).join("");
}
