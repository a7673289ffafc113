// A form for one model, made of its metadata, and the answers to its requests.
import { h, link, note, replace, section } from "../lib/dom.js";
import { live } from "../lib/live.js";
import { modelNav, stylesheet } from "../lib/model_nav.js";
import { chatPanel, mayChat } from "../trying/chat.js";
import { copying } from "../trying/copying.js";
import { describe } from "../trying/describe.js";
import { makeForm } from "../trying/form.js";
import { runner } from "../trying/running.js";

export async function show(view, { params, signal, title }) {
  const { model, version } = params;
  title(`Try ${model}${version ? ` version ${version}` : ""}`);
  stylesheet("trying/try.css");
  const place = h("div");
  const nav = h("div");
  view.append(nav, place);
  let ensemble = null;
  live.watch(({ models }) => {
    const row = [...models.values()].find((each) => each.name === model && (!version || each.version === version));
    if (ensemble === (row?.kind === "ensemble")) return;
    ensemble = row?.kind === "ensemble";
    replace(nav, modelNav(model, version, "Try it", row));
  }, signal);
  if (!nav.firstChild) replace(nav, modelNav(model, version, "Try it"));
  const { form, config } = await described(model, version, signal);
  const heading = h("summary", {}, "Chat, by the OpenAI API");
  const chat = mayChat(config) && h("details", { class: "card" }, heading, chatPanel(model, signal));
  replace(place, chat, panel({ model, version, form, signal }));
}

async function described(model, version, signal) {
  try {
    return await describe(model, version, signal);
  } catch (error) {
    if (error.status) error.message += ` (${link("model", model, version)} says more of its state.)`;
    throw error;
  }
}

function panel({ model, version, form, signal }) {
  const fields = makeForm(form);
  const nothing = h("p", { class: "quiet" }, "Nothing was sent yet.");
  const place = h("div", { class: "answer", role: "region", aria: { label: "Answer" } }, nothing);
  const run = runner({ model, version, form, fields, place, signal });
  const words = [
    form.decoupled && "It answers by a stream.",
    form.sequences && "It keeps sequences: start one, send any number of requests, end it.",
  ].filter(Boolean).join(" ");
  const make = async () => {
    return { ...(await fields.read()), model, version, decoupled: form.decoupled, sequence: run.sequence() };
  };
  const buttons = h("div", { class: "buttons" }, run.buttons);
  const request = section("Request", words ? note(words) : null, fields.node, buttons);
  return h("div", { class: "try" },
    h("div", { class: "card" }, request, section("The same request as", copying(make))),
    h("div", { class: "card" }, section("Answer", place)));
}
