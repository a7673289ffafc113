// A request as a program of Python, by tritonclient or by nereid_client. Pure.
import { bytesOfInput } from "./requests.js";
import { fileName } from "./curl.js";

// Elements that are written out; more are read from a file.
const MOST_WRITTEN = 64;
const NUMPY = {
  BOOL: "bool", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8", INT16: "int16",
  INT32: "int32", INT64: "int64", FP16: "float16", FP32: "float32", FP64: "float64", BF16: "float32", BYTES: "object",
};

// A string of Python: JSON's escapes are among its own.
export const text = (value) => JSON.stringify(value);

export function python(request, library) {
  const lines = library === "tritonclient" ? triton(request) : nereid(request);
  return [...imports(request, library), "", ...lines].join("\n");
}

function imports(request, library) {
  const { tokens, decoupled } = request;
  const triton = library === "tritonclient";
  const own = triton ? `import tritonclient.${decoupled ? "grpc" : "http"} as triton` : "import nereid_client";
  const first = [tokens && "import os", triton && decoupled && "import queue"].filter(Boolean);
  const brain = triton && request.inputs.some((each) => each.datatype === "BF16") ? ["import ml_dtypes"] : [];
  return [...first, ...(first.length ? [""] : []), ...brain, "import numpy as np", own];
}

// brain: how numbers of BF16 are given, which numpy does not have: as such (ml_dtypes), or as float32.
function array(input, brain) {
  const { datatype, shape } = input;
  const kind = datatype === "BF16" && brain ? "ml_dtypes.bfloat16" : `np.${dtype(datatype)}`;
  const sizes = `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  if (input.file) return `np.array([open(${text(input.file)}, "rb").read()], object).reshape${sizes}`;
  if (!readsFile(input)) return `np.array([${literals(input)}], ${kind}).reshape${sizes}`;
  if (datatype === "BF16" && !brain) {
    const halves = `np.fromfile(${text(fileName(input.name))}, np.uint16)`;
    return `(${halves}.astype(np.uint32) << 16).view(np.float32).reshape${sizes}`;
  }
  return `np.fromfile(${text(fileName(input.name))}, ${kind}).reshape${sizes}`;
}

const dtype = (datatype) => (datatype === "BOOL" ? "bool_" : datatype === "BYTES" ? "object_" : NUMPY[datatype]);

function readsFile({ datatype, elements, bytes }) {
  return datatype !== "BYTES" && (Boolean(bytes) || elements.length > MOST_WRITTEN);
}

function literals({ datatype, elements }) {
  return Array.from(elements, (each) => literal(datatype, each)).join(", ");
}

function literal(datatype, value) {
  if (value instanceof Uint8Array) return `bytes([${value.join(", ")}])`;
  if (datatype === "BYTES") return `${text(value)}.encode()`;
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number" && !Number.isFinite(value)) return `float("${value}")`;
  return String(value);
}

export function pythonFiles({ inputs }) {
  return inputs.filter(readsFile).map((each) => ({ name: fileName(each.name), bytes: bytesOfInput(each) }));
}

const headers = '{"Authorization": "Bearer " + os.environ["NEREID_TOKEN"]}';

function triton(request) {
  const { model, version, outputs, sequence } = request;
  const arrays = request.inputs.map((each) => `    ${text(each.name)}: (${array(each, true)}, ${text(each.datatype)}),`);
  const asked = outputs.filter((each) => each.classes);
  const wanted = asked.map((each) => `triton.InferRequestedOutput(${text(each.name)}, class_count=${each.classes})`);
  const options = [
    version && `model_version=${text(version)}`,
    asked.length && `outputs=[${wanted.join(", ")}]`,
    sequence !== null && `sequence_id=${idOf(sequence)}, sequence_start=True, sequence_end=True`,
  ].filter(Boolean);
  const made = [
    "arrays = {", ...arrays, "}",
    "inputs = []",
    "for name, (array, datatype) in arrays.items():",
    "    inputs.append(triton.InferInput(name, array.shape, datatype))",
    "    inputs[-1].set_data_from_numpy(array)",
    "",
  ];
  return request.decoupled ? [...made, ...stream(request, options)] : [...made, ...call(request, options, text(model))];
}

function idOf(id) {
  return typeof id === "string" ? text(id) : String(id);
}

const bare = (url) => url.replace(/^https?:\/\//, "");

function call({ url, tokens, outputs }, options, model) {
  const secure = url.startsWith("https:") ? ", ssl=True" : "";
  const given = [model, "inputs", ...options, tokens && `headers=${headers}`].filter(Boolean).join(", ");
  const asked = outputs.filter((each) => each.classes);
  const names = (asked.length ? asked : outputs).map((each) => text(each.name)).join(", ");
  return [
    `with triton.InferenceServerClient(${text(bare(url))}${secure}) as client:`,
    `    result = client.infer(${given})`,
    `    for name in [${names}]:`,
    "        print(name, result.as_numpy(name))",
  ];
}

function stream({ url, grpc, model, tokens }, options) {
  const secure = url.startsWith("https:") ? ", ssl=True" : "";
  const token = tokens ? `, headers=${headers.replace("Authorization", "authorization")}` : "";
  const given = [text(model), "inputs", ...options, "enable_empty_final_response=True"].join(", ");
  return [
    "answers = queue.Queue()",
    `with triton.InferenceServerClient(${text(grpc)}${secure}) as client:`,
    `    client.start_stream(lambda result, error: answers.put(error or result)${token})`,
    `    client.async_stream_infer(${given})`,
    "    final = False",
    "    while not final:",
    "        result = answers.get(timeout=60)",
    "        if isinstance(result, Exception):",
    "            raise result",
    "        response = result.get_response()",
    "        for output in response.outputs:",
    "            print(output.name, result.as_numpy(output.name))",
    '        final = response.parameters["triton_final_response"].bool_param',
  ];
}

function nereid(request) {
  const { url, model, version, tokens, outputs } = request;
  const asked = outputs.filter((each) => each.classes);
  const options = asked.length
    ? `.options(outputs=[${asked.map((each) => text(each.name)).join(", ")}], classes=${asked[0].classes})` : "";
  const given = tokens ? ', token=os.environ["NEREID_TOKEN"]' : "";
  return [
    "inputs = {", ...request.inputs.map((each) => `    ${text(each.name)}: ${array(each, false)},`), "}",
    `with nereid_client.connect(${text(url)}${given}) as server:`,
    `    model = server.model(${text(model)}${version ? `, ${text(version)}` : ""})${options}`,
    ...answers(request, asked),
  ];
}

function answers(request, asked) {
  const print = ["    for name, array in result.items():", "        print(name, array)"];
  if (request.decoupled) return ["    for result in model.stream(inputs):", ...print.map((line) => `    ${line}`)];
  if (request.sequence !== null) {
    return ["    with model.sequence() as sequence:", "        result = sequence(inputs, last=True)", ...print];
  }
  if (asked.length) {
    return ["    result = model(inputs)", "    for name in result:", "        print(name, result.top(name))"];
  }
  return ["    result = model(inputs)", ...print];
}
