// A chat with a model that OpenAI's API offers: an answer appears as it is written.
import { events } from "../lib/api.js";
import { button, copyable, field, h, note, replace } from "../lib/dom.js";
import { ms } from "../lib/format.js";
import { addresses } from "./describe.js";
import { quoted } from "../tensors/curl.js";
import { text as python } from "../tensors/python.js";

const BACKENDS = new Set(["llm", "vllm", "tensorrtllm"]);

// Whether a model may be one that OpenAI's API talks to; the API itself says so when it is asked. Pure.
export function mayChat({ backend, parameters, input }) {
  const reads = (input ?? []).some((each) => {
    return each.data_type === "TYPE_STRING" && /^(text_input|prompt|PROMPT|messages)$/.test(each.name);
  });
  return BACKENDS.has(backend) || reads || Boolean(parameters?.openai);
}

export function chatPanel(model, signal) {
  const messages = [];
  const log = h("ol", { class: "chat", aria: { label: "Messages", live: "polite" } });
  const said = h("textarea", { rows: "3", placeholder: "Say something" });
  const most = h("input", { type: "number", min: "1", max: "4096", value: "128" });
  const figures = h("p", { class: "quiet", role: "status" });
  let stop = new AbortController();
  const body = () => ({ model, messages, max_tokens: Number(most.value) || 128, stream: true });
  const ask = async () => {
    if (!said.value.trim()) return;
    stop = new AbortController();
    signal.addEventListener("abort", () => stop.abort());
    messages.push({ role: "user", content: said.value });
    log.append(line("you", said.value));
    said.value = "";
    const answer = line(model, "");
    log.append(answer);
    await answered(answer.lastChild, body(), stop, figures, messages);
  };
  said.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    send.click();
  });
  const send = button("Send", ask, { kind: "primary" });
  const again = button("Begin anew", () => (messages.splice(0), replace(log)));
  const halt = button("Stop", () => stop.abort());
  const buttons = h("div", { class: "buttons" }, send, halt, again);
  return h("div", {}, log, figures, field("Message", said), field("Tokens at most", most), buttons, copies(body));
}

function line(who, text) {
  return h("li", {}, h("b", {}, who), h("p", {}, text));
}

async function answered(place, body, stop, figures, messages) {
  const started = performance.now();
  let first = null;
  let text = "";
  try {
    await events("/v1/chat/completions", { body, signal: stop.signal }, (data) => {
      if (data === "[DONE]") return;
      const { choices = [], error } = JSON.parse(data);
      if (error) throw new Error(error.message ?? String(error));
      first ??= performance.now() - started;
      text += choices[0]?.delta?.content ?? "";
      place.textContent = text;
    });
    figures.textContent = `The first piece after ${ms(first)}, all of it after ${ms(performance.now() - started)}.`;
  } catch (error) {
    if (!stop.signal.aborted) place.replaceWith(note(error.message, "bad"));
  }
  messages.push({ role: "assistant", content: text });
}

// Returns the chat as [title, text] each. Pure.
export function chatSnippets(body, { url, tokens }) {
  const given = tokens ? ' -H "Authorization: Bearer $NEREID_TOKEN"' : "";
  const messages = body.messages.length ? body.messages : [{ role: "user", content: "Hello" }];
  const asked = { ...body, messages };
  const at = quoted(`${url}/v1/chat/completions`);
  const json = "-H 'Content-Type: application/json'";
  const curl = `curl -sS${given} -N ${at} \\\n  ${json} -d ${quoted(JSON.stringify(asked))}`;
  const program = [
    ...(tokens ? ["import os", ""] : []),
    "from openai import OpenAI", "",
    `client = OpenAI(base_url=${python(`${url}/v1`)}, api_key=${tokens ? 'os.environ["NEREID_TOKEN"]' : '"none"'})`,
    "messages = [",
    ...messages.map(({ role, content }) => `    {"role": ${python(role)}, "content": ${python(content)}},`),
    "]",
    "chunks = client.chat.completions.create(",
    `    model=${python(body.model)}, messages=messages, max_tokens=${body.max_tokens}, stream=True`,
    ")",
    "for chunk in chunks:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ];
  return [["curl", curl], ["Python (openai)", program.join("\n")]];
}

function copies(body) {
  const place = h("div");
  const buttons = ["curl", "Python (openai)"].map((title, number) => {
    return button(title, () => replace(place, copyable(chatSnippets(body(), addresses())[number][1])));
  });
  return h("div", {}, h("h3", {}, "The same as"), h("div", { class: "buttons" }, buttons), place);
}
