// Sends the requests of a form: single ones, those of a sequence, and those that are answered by a stream.
import { events, modelPath, send } from "../lib/api.js";
import { button, h, note, replace } from "../lib/dom.js";
import { ms } from "../lib/format.js";
import { asText, outputNodes, spark } from "./outputs.js";
import { answer, event, generation, inference } from "../tensors/requests.js";
import { between, statistics, told } from "./timing.js";

const MOST_SHOWN = 100;

// Returns { buttons, sequence }: nodes to press; `sequence` is its id for a snippet, or null.
//
// about: { model, version, form, fields, place, signal }; the answers appear in `place`.
export function runner(about) {
  if (about.form.decoupled) return streaming(about);
  return about.form.sequences ? sequences(about) : single(about);
}

async function infer({ model, version, fields, signal }, parameters = {}) {
  const request = await fields.read();
  const { headers, body } = inference({ ...request, parameters });
  const before = await statistics(model, signal);
  const started = performance.now();
  const got = await send("POST", modelPath(model, version, "infer"), { headers, body, signal });
  const found = answer(await got.arrayBuffer(), got.headers);
  const seconds = (performance.now() - started) / 1000;
  const share = before && between(before, await statistics(model, signal), found.model_version);
  const classes = request.outputs.filter((each) => each.classes).map(({ name }) => name);
  return { found, seconds, share, classes: new Set(classes) };
}

function single(about) {
  const { place, fields } = about;
  const run = async () => {
    replace(place, note("Waiting for the answer.", "busy"));
    try {
      const { found, seconds, share, classes } = await infer(about);
      const by = h("p", { class: "quiet" }, `Answered by version ${found.model_version}.`);
      const nodes = outputNodes(found.outputs ?? [], { classes, picture: fields.picture });
      replace(place, h("p", { role: "status" }, told(seconds, share)), nodes, by);
    } catch (error) {
      failed(place, error, about.signal);
    }
  };
  return { buttons: [button("Send", run, { kind: "primary" })], sequence: () => null };
}

function failed(place, error, signal) {
  if (signal.aborted) return;
  replace(place, note(error.message, "bad"));
}

function sequences(about) {
  const { place, form, fields, signal } = about;
  const state = { id: null, sent: 0, lines: [], values: [], stop: false };
  const told = h("p", { role: "status" }, "No sequence runs.");
  const log = h("div");
  const request = async (start, end) => {
    if (start) Object.assign(state, { id: newId(form), sent: 0, lines: [], values: [] }), fields.sound?.rewind();
    try {
      const parameters = { sequence_id: state.id, sequence_start: start, sequence_end: end };
      const { found, seconds } = await infer(about, parameters);
      state.sent += 1;
      fields.sound?.step();
      noted(state, found.outputs ?? [], `${state.sent} · ${ms(seconds * 1000)}`);
      draw(log, state);
    } catch (error) {
      if (signal.aborted) throw error;
      end = true; // the server may have ended it: a new one begins anew
      replace(log, note(error.message, "bad"));
    }
    const words = `Sequence ${state.id}: ${some(state.sent)}`;
    told.textContent = end ? `${words}; it has ended.` : `${words}.`;
    if (end) state.id = null;
    enable();
  };
  const start = button("Start", () => request(true, false), { kind: "primary" });
  const next = button("Next", () => request(false, false));
  const end = button("End", () => request(false, true));
  const all = button("Play all pieces", async () => {
    state.stop = false;
    for (let first = true; !state.stop && !signal.aborted; first = false) {
      const last = (fields.sound?.left() ?? 0) <= 1 && !first;
      await request(first, last);
      if (state.id === null) break;
    }
    enable();
  });
  const halt = button("Stop", () => (state.stop = true));
  const enable = () => setTimeout(() => { // after a button has enabled itself again
    next.disabled = end.disabled = state.id === null;
  });
  enable();
  replace(place, told, log);
  const played = form.inputs.some((each) => each.sound) ? [all, halt] : [];
  return { buttons: [start, next, end, ...played], sequence: () => newId(form) };
}

const some = (number) => `${number} ${number === 1 ? "answer" : "answers"}`;

function newId(form) {
  const number = 1 + Math.floor(Math.random() * 2 ** 31);
  return form.textIds ? String(number) : number; // digits: some models read a number in a text
}

// Keeps a line of an answer, and the value of its first output that is a single number.
function noted(state, outputs, head) {
  const words = outputs.map(({ name, elements }) => `${name} = ${brief(elements)}`).join("; ");
  state.lines.push(`${head}: ${words}`);
  state.lines.splice(0, state.lines.length - MOST_SHOWN);
  const one = outputs.find(({ elements }) => elements.length === 1 && typeof elements[0] === "number");
  if (one) state.values.push(one.elements[0]), (state.name = one.name);
}

function brief(elements) {
  const few = Array.from(elements.slice(0, 12), (each) => {
    const said = each instanceof Uint8Array || typeof each === "string";
    return said ? asText(each).slice(0, 500) : shortNumber(each);
  });
  return `${few.join(", ")}${elements.length > 12 ? ", …" : ""}`;
}

function shortNumber(value) {
  return String(typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value);
}

function draw(log, state) {
  const line = state.values.length > 1 ? spark(state.values, state.name) : null;
  const rows = state.lines.map((each) => h("li", {}, each));
  replace(log, line, h("ol", { class: "answers", tabindex: "0", aria: { label: "Answers" } }, rows));
  log.lastChild.scrollTop = log.lastChild.scrollHeight;
}

function streaming(about) {
  const { model, version, form, fields, place, signal } = about;
  let stop = new AbortController();
  const run = async () => {
    stop = new AbortController();
    signal.addEventListener("abort", () => stop.abort());
    const state = { lines: [], values: [], text: "", count: 0 };
    const head = h("p", { role: "status" }, "Waiting for the first answer.");
    const text = h("pre", { hidden: true, tabindex: "0" });
    const log = h("div");
    replace(place, head, text, log);
    const started = performance.now();
    let first = null;
    try {
      const { inputs } = await fields.read();
      const asked = { body: generation(inputs), signal: stop.signal };
      await events(modelPath(model, version, "generate_stream"), asked, (data) => {
        first ??= performance.now() - started;
        arrived(state, event(data, form.outputs), text, performance.now() - started);
        head.textContent = `${some(state.count)}, the first after ${ms(first)}.`;
        draw(log, state);
      });
      const begun = first === null ? "" : `, the first after ${ms(first)}`;
      head.textContent = `${some(state.count)} in ${ms(performance.now() - started)}${begun}.`;
    } catch (error) {
      if (signal.aborted) return;
      const stopped = stop.signal.aborted;
      place.append(stopped ? note(`Stopped after ${some(state.count)}.`, "busy") : note(error.message, "bad"));
    }
  };
  const halt = button("Stop", () => stop.abort());
  return { buttons: [button("Send", run, { kind: "primary" }), halt], sequence: () => null };
}

function arrived(state, { outputs }, text, after) {
  state.count += 1;
  noted(state, outputs, `${state.count} · ${ms(after)}`);
  const said = outputs.find(({ datatype, elements }) => datatype === "BYTES" && elements.length === 1);
  if (!said) return;
  state.text = (state.text + asText(said.elements[0])).slice(-20000);
  text.textContent = state.text;
  text.hidden = false;
}
