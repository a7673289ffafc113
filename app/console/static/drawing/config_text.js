// A configuration of the protocol's JSON in protobuf's text format, as config.pbtxt has it. Pure.

// Fields whose values are names of an enum, which stand without quotes; a test compares them with the messages.
export const ENUMS = new Set(["data_type", "format", "kind", "priority", "timeout_action"]);
// Fields that are maps; a key of theirs is a string.
export const MAPS = new Set([
  "cc_model_filenames", "metric_tags", "parameters", "inputs", "input_map", "output_map", "priority_queue_policy",
  "input",
]);
// Fields with integers that JSON has as strings.
export const LONG = new Set(["dims", "dim", "device_id"]);

const NAME = /^[a-z_0-9]+$/i;

// Returns the text; what is unset or has its default value is left out.
export function configText(config) {
  return fields(config, "").join("\n");
}

function fields(message, indent) {
  return Object.entries(message).flatMap(([name, value]) => field(name, value, indent));
}

function field(name, value, indent) {
  if (!NAME.test(name) || isEmpty(value)) return [];
  if (Array.isArray(value)) return list(name, value, indent);
  if (typeof value !== "object") return [`${indent}${name}: ${scalar(name, value)}`];
  if (MAPS.has(name)) return Object.entries(value).flatMap(([key, each]) => entry(name, key, each, indent));
  return block(name, fields(value, `${indent}  `), indent);
}

function list(name, values, indent) {
  if (values.every((each) => typeof each !== "object")) {
    return [`${indent}${name}: [ ${values.map((each) => scalar(name, each)).join(", ")} ]`];
  }
  return values.flatMap((each) => block(name, fields(each, `${indent}  `), indent));
}

function entry(name, key, value, indent) {
  const inner = `${indent}  `;
  const whole = Number.isInteger(Number(key)) && name === "priority_queue_policy";
  const first = `${inner}key: ${whole ? key : JSON.stringify(key)}`;
  const scalars = [`${inner}value: ${scalar("", value)}`];
  const rest = typeof value === "object" ? block("value", fields(value, `${inner}  `), inner) : scalars;
  return block(name, [first, ...rest], indent);
}

function block(name, lines, indent) {
  if (!lines.length) return [`${indent}${name} { }`];
  return [`${indent}${name} {`, ...lines, `${indent}}`];
}

function scalar(name, value) {
  if (typeof value !== "string") return String(value);
  if (ENUMS.has(name) && /^[A-Z][A-Z0-9_]*$/.test(value)) return value;
  if (LONG.has(name) && /^-?\d+$/.test(value)) return value;
  return JSON.stringify(value);
}

const DEFAULTS = new Set(["FORMAT_NONE", "PRIORITY_DEFAULT"]);

function isEmpty(value) {
  if (value === null || value === "" || value === false || value === 0 || DEFAULTS.has(value)) return true;
  return Array.isArray(value) && value.length === 0;
}
