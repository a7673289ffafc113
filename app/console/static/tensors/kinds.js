// The rules of the form: what an input or output is for a person, by metadata and configuration. Pure.
import { isInteger } from "./datatypes.js";
import { product } from "./values.js";

const PICTURE_WORDS = /image|img|jpe?g|png|picture|photo|frame|pixel/i;
const SOUND_WORDS = /audio|sound|wav|speech|voice|pcm|waveform/i;
const TEXT_WORDS = /text|prompt|label|token|query|question|name|json/i;
const RATE_WORDS = /^(sr|sample_rate|sampling_rate)$/i;
const PICTURE_TYPES = new Set(["FP32", "FP16", "BF16", "UINT8", "FP64"]);
const SIDE = 224; // of a picture whose size the model leaves open, until one is chosen
const SAMPLES = 512;
const SAMPLE_RATE = 16000;
const LEAST_CLASSES = 5; // values of an output without labels that may be classes
const LEAST_SOUND = 256; // values of a fixed dimension that are sound rather than a row of figures

// Returns what the form needs of a model.
//
// metadata, config: of the protocol. stepConfig: of a model of an ensemble by name, null if unknown.
export function formOf(metadata, config, stepConfig = () => null) {
  const sequences = Boolean(config.sequence_batching);
  const batched = config.max_batch_size > 0;
  const controls = (config.sequence_batching?.control_input ?? []).flatMap((each) => each.control ?? []);
  const model = { config, batched, sequences, stepConfig };
  return {
    batched,
    sequences,
    decoupled: Boolean(config.model_transaction_policy?.decoupled),
    textIds: controls.some((each) => each.kind === "CONTROL_SEQUENCE_CORRID" && each.data_type === "TYPE_STRING"),
    inputs: metadata.inputs.map((tensor) => input(tensor, model)),
    outputs: metadata.outputs.map((tensor) => output(tensor, model)),
  };
}

function input(tensor, model) {
  const shape = tensor.shape.map(Number);
  const spec = (model.config.input ?? []).find((each) => each.name === tensor.name) ?? {};
  const known = { name: tensor.name, datatype: tensor.datatype, shape, optional: Boolean(spec.optional) };
  return { ...known, ...kindOf(known, spec, model) };
}

// Returns { kind, kinds, ... }: the editor that is shown first, and those that a person may choose.
function kindOf(tensor, spec, model) {
  if (tensor.datatype === "BYTES") return ofBytes(tensor, model);
  const picture = pictureLayout(tensor, spec.format, model.batched);
  const sound = soundLayout(tensor, model);
  const rate = isInteger(tensor.datatype) && RATE_WORDS.test(tensor.name);
  const kinds = [picture && "picture", sound && "sound", "values"].filter(Boolean);
  const first = rate ? SAMPLE_RATE : isInteger(tensor.datatype) && /delay|wait/i.test(tensor.name) ? 0 : 1;
  return { kind: kinds[0], kinds, picture, sound, rate, first };
}

function ofBytes(tensor, model) {
  const one = product(tensor.shape.map(Math.abs)) === 1;
  const where = [tensor.name, ...consumers(tensor.name, model.config)];
  const decodes = where.some((each) => PICTURE_WORDS.test(each)) || limitsPixels(tensor.name, model);
  const listens = where.some((each) => SOUND_WORDS.test(each));
  const writes = TEXT_WORDS.test(tensor.name) && !PICTURE_WORDS.test(tensor.name);
  const kinds = one ? ["text", "texts", "file"] : ["texts", "text", "file"];
  const file = one && !writes && (decodes || listens);
  return { kind: file ? "file" : kinds[0], kinds, accept: decodes ? "image/*" : listens ? "audio/*" : "" };
}

// The steps of an ensemble that read a tensor, as "model input".
function consumers(name, config) {
  const steps = config.ensemble_scheduling?.step ?? [];
  return steps.flatMap((step) => {
    const read = Object.entries(step.input_map ?? {}).filter(([, tensor]) => tensor === name);
    return read.map(([key]) => `${step.model_name} ${key}`);
  });
}

// Whether it, or a step that reads this input, bounds the pixels that it decodes.
function limitsPixels(name, { config, stepConfig }) {
  const steps = config.ensemble_scheduling?.step ?? [];
  const readers = steps.filter((step) => Object.values(step.input_map ?? {}).includes(name));
  const configs = steps.length ? readers.map((step) => stepConfig(step.model_name)) : [config];
  return configs.some((each) => each?.parameters && "max_pixels" in each.parameters);
}

// Returns { layout, channels, height, width } with null for an open side; null if it is no picture.
export function pictureLayout({ datatype, shape }, format, batched) {
  if (!PICTURE_TYPES.has(datatype)) return null;
  const sizes = batched || shape.length === 4 ? shape.slice(1) : shape;
  if (sizes.length !== 3 || (!batched && shape.length === 4 && Math.abs(shape[0]) !== 1)) return null;
  const first = format === "FORMAT_NCHW" || (format !== "FORMAT_NHWC" && (sizes[0] === 3 || sizes[0] === 1));
  const last = format === "FORMAT_NHWC" || (!first && (sizes[2] === 3 || sizes[2] === 1));
  if (!first && !last) return null;
  const [channels, height, width] = first ? sizes : [sizes[2], sizes[0], sizes[1]];
  if (![1, 3].includes(channels) || [height, width].some((side) => side >= 0 && side < 8)) return null;
  const open = (side) => (side < 0 ? null : side);
  return { layout: first ? "NCHW" : "NHWC", channels, height: open(height), width: open(width) };
}

// The size to which a picture is brought: an open side keeps the picture's form, in steps of 32 pixels.
export function pictureSize({ height, width }, picture = { width: SIDE, height: SIDE }, most = 640) {
  if (height && width) return { height, width };
  const step = (side) => Math.max(32, Math.round(side / 32) * 32);
  if (height) return { height, width: step((picture.width * height) / picture.height) };
  if (width) return { width, height: step((picture.height * width) / picture.width) };
  const scale = Math.min(1, most / Math.max(picture.width, picture.height));
  return { height: step(picture.height * scale), width: step(picture.width * scale) };
}

// Returns { samples }: how many a request takes, with `open` where the model leaves that to clients; or null.
function soundLayout({ name, datatype, shape }, { sequences }) {
  if (!["FP32", "INT16"].includes(datatype) || !shape.length) return null;
  const long = shape[shape.length - 1];
  if (shape.slice(0, -1).some((size) => Math.abs(size) !== 1)) return null;
  const named = SOUND_WORDS.test(name);
  if (!named && !(sequences && datatype === "FP32" && (long < 0 || long >= LEAST_SOUND))) return null;
  if (long >= 0 && long < LEAST_SOUND) return null;
  return { samples: long < 0 ? (sequences ? SAMPLES : null) : long, open: long < 0 };
}

function output(tensor, { config, stepConfig }) {
  const shape = tensor.shape.map(Number);
  const numeric = tensor.datatype !== "BYTES";
  const labels = numeric && labelled(tensor.name, config, stepConfig);
  const row = config.max_batch_size > 0 ? shape.slice(1) : shape;
  const classes = Boolean(labels) || (numeric && row.length === 1 && row[0] >= LEAST_CLASSES);
  return { name: tensor.name, datatype: tensor.datatype, shape, labels, classes };
}

// The file of the labels of an output: its own, or that of the step that writes it.
function labelled(name, config, stepConfig) {
  const own = (config.output ?? []).find((each) => each.name === name)?.label_filename;
  if (own) return own;
  for (const step of config.ensemble_scheduling?.step ?? []) {
    const written = Object.entries(step.output_map ?? {}).find(([, tensor]) => tensor === name);
    const inner = written && stepConfig(step.model_name);
    if (inner) return labelled(written[0], inner, stepConfig);
  }
  return "";
}

// Returns the shape of a request that is filled for a person: 1 for what is open.
export function leastShape(shape) {
  return shape.map((size) => (size < 0 ? 1 : size));
}
