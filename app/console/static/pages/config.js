// The configuration as text: what is served, what somebody would like, the difference, and its load.
import { get, modelPath, post } from "../lib/api.js";
import { ask, button, copyable, field, h, note, notify, replace, section } from "../lib/dom.js";
import { modelNav, stylesheet } from "../lib/model_nav.js";
import { chooseModel } from "../operate/choose.js";

const PAUSE_MS = 400;

export async function show(view, { params: { model }, signal, title }) {
  stylesheet("operate/operate.css");
  if (!model) {
    title("Configurations");
    chooseModel(view, signal, "config", "The configuration of a model as it is served, with all defaults filled in.");
    return;
  }
  title(`Configuration of ${model}`);
  view.append(modelNav(model, "", "Configuration"));
  const path = modelPath(model, "", "config/text");
  const served = await get(path, { signal });
  const text = h("textarea", { class: "editor", value: served.text, spellcheck: "false", autocapitalize: "off", wrap: "off", rows: "24" });
  const told = h("div", { role: "status" });
  const difference = h("div");
  const apply = button("Load with this…", () => load(model, checked), { kind: "primary", disabled: true });
  const reset = button("Back to what is served", async () => {
    served.text = (await get(path, { signal })).text;
    text.value = served.text;
    await check();
  });
  let checked = "";
  let asked = 0;

  async function check() {
    const number = (asked += 1);
    const answer = await post(path, { text: text.value }, { signal });
    if (number !== asked) return;
    checked = answer.error || !answer.differences.length ? "" : answer.config;
    apply.disabled = !checked;
    replace(told, verdict(answer, text));
    replace(difference, answer.differences.length ? section("Difference to what is served", lines(answer.differences)) : null);
  }

  let timer = 0;
  text.addEventListener("input", () => {
    apply.disabled = true;
    clearTimeout(timer);
    timer = setTimeout(() => check().catch((error) => { if (!signal.aborted) replace(told, note(error.message, "bad")); }), PAUSE_MS);
  });
  const hint = "A load keeps it in memory: config.pbtxt stays as it is, and the next load without a configuration reads that again.";
  view.append(
    h("p", { class: "quiet" }, `Version ${served.version}, completed. ${hint}`), field("config.pbtxt", text), told,
    h("div", { class: "buttons" }, apply, reset), difference, section("To save it", h("p", {}, "Write the text to config.pbtxt in the model's directory:"), copyable(`${model}/config.pbtxt`)),
  );
}

function verdict(answer, text) {
  if (!answer.error) return answer.differences.length ? note("It can be read.", "good") : note("This is what is served.", "");
  if (!answer.line) return note(answer.error, "bad");
  const go = button("Go there", async () => select(text, answer.line, answer.column));
  return h("div", {}, note(`Line ${answer.line}, column ${answer.column}: ${answer.error}`, "bad"), go);
}

// Puts the cursor where the error is, and marks the rest of the line.
function select(text, line, column) {
  const rows = text.value.split("\n");
  const start = rows.slice(0, line - 1).reduce((sum, row) => sum + row.length + 1, 0);
  text.focus();
  text.setSelectionRange(start + column - 1, start + (rows[line - 1] ?? "").length);
}

const LOOKS = { "+": "added", "-": "removed", "@": "place" };

function lines(differences) {
  const nodes = differences.map((each) => h("span", { class: LOOKS[each[0]] ?? null }, `${each}\n`));
  return h("pre", { class: "difference", tabindex: "0", aria: { label: "Difference" } }, nodes);
}

async function load(model, config) {
  const text = "The model is loaded again with this configuration. What is served goes on until it has loaded; if that fails, it stays. Needs --model-control-mode=explicit.";
  if (!await ask({ title: `Load ${model}`, text, action: "Load" })) return;
  await post(`/v2/repository/models/${encodeURIComponent(model)}/load`, { parameters: { config } });
  notify(`${model} is loaded with this configuration.`, "good");
}
