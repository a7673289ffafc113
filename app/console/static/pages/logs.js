// The last lines of the server's log, those of a level and above, as they come.
import { get } from "../lib/api.js";
import { button, field, h, note, replace, select } from "../lib/dom.js";
import { clock } from "../lib/format.js";
import { repeat, trouble } from "../lib/repeat.js";

const MOST = 1000;
const LEVELS = [
  ["debug", "everything"], ["info", "information and above"], ["warning", "warnings and errors"], ["error", "errors"],
];
const LOOKS = { error: "bad", warning: "busy" };

export async function show(view, { signal, title }) {
  title("Log");
  const level = select(LEVELS, "info");
  const words = h("input", { type: "search", spellcheck: "false" });
  const list = h("ol", { class: "log", tabindex: "0", aria: { label: "Lines of the log" } });
  const problem = note("", "bad");
  const quiet = h("p", { class: "quiet" });
  let lines = [];
  let after = 0;
  let stopped = false;

  function draw() {
    const text = words.value.toLowerCase();
    const shown = lines.filter((line) => `${line.place} ${line.text}`.toLowerCase().includes(text));
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    replace(list, shown.map(item));
    const told = `${shown.length} of the last ${lines.length} lines of the process that answers`;
    quiet.textContent = `${told}; the log itself has all of them.`;
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  async function read() {
    if (stopped) return;
    const asked = level.value;
    const found = await get(`/v2/nereid/logs?level=${asked}&after=${after}`, { signal });
    if (asked !== level.value || !found.lines.length) return;
    after = found.lines.at(-1).number;
    lines = [...lines, ...found.lines].slice(-MOST);
    draw();
  }

  level.addEventListener("change", () => {
    lines = [];
    after = 0;
    draw();
    read().catch(() => {});
  });
  words.addEventListener("input", draw);
  const pause = button("Pause", () => {
    stopped = !stopped;
    pause.textContent = stopped ? "Go on" : "Pause";
  });
  const bar = h("div", { class: "buttons" }, field("Lines", level), field("With the text", words), pause);
  view.append(bar, problem, list, quiet);
  draw();
  await repeat(read, signal, trouble(problem));
}

function item(line) {
  const at = h("span", { class: "quiet" }, clock(line.at));
  const parts = [at, " ", h("b", {}, line.level), " ", line.text, " ", h("small", {}, line.place)];
  return h("li", { class: LOOKS[line.level] ?? null }, parts);
}
