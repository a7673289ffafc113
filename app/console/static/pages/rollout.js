// A rollout: both versions, the judge and its evidence, weights, history, and what a person may do.
import { get } from "../lib/api.js";
import { h, note, replace } from "../lib/dom.js";
import { clock, decimal } from "../lib/format.js";
import { live } from "../lib/live.js";
import { modelNav, stylesheet } from "../lib/model_nav.js";
import { repeat } from "../lib/repeat.js";
import { chooseModel } from "../operate/choose.js";
import { redrawing } from "../operate/redraw.js";
import { actions } from "../operate/rollout_actions.js";
import { events, judgement, served, stateBadge, versions } from "../operate/rollout_figures.js";

const EVERY_MS = 2000;

export async function show(view, { params: { model }, signal, title }) {
  stylesheet("operate/operate.css");
  if (!model) {
    title("Rollouts");
    chooseModel(view, signal, "rollout", "A rollout gives a new version a rising share of the requests, judged beside the one in service.");
    return;
  }
  title(`Rollout of ${model}`);
  const problem = h("div");
  const head = h("div", { role: "status" });
  const buttons = h("div", { class: "buttons" });
  const body = h("div");
  const past = h("div");
  view.append(modelNav(model, "", "Rollout"), problem, head, buttons, body, past);
  const drawHead = redrawing(head, ([status]) => (status ? headline(status) : note("This model has had no rollout.")));
  const drawButtons = redrawing(buttons, ([state, rejected, known]) => actions(model, state, rejected, known, draw));
  const drawBody = redrawing(body, (status) => (status ? [versions(status), judgement(status), events(status)] : null));
  const drawPast = redrawing(past, (history) => (history ? served(history) : null));
  async function draw() {
    const { rollout: status, history } = await get(`/v2/nereid/models/${encodeURIComponent(model)}/rollout`, { signal });
    const known = [...live.models.values()].filter((row) => row.name === model && row.version).map((row) => row.version);
    drawHead([status && { ...status, outcomes: null, total: null, figures: null, verdict: null, tape: null }]);
    drawButtons([status?.state ?? "", (history?.rejected ?? status?.rejected ?? []).length, known]);
    drawBody(status);
    drawPast(history);
  }
  repeat(draw, signal, (error) => replace(problem, error ? note(error.message, "bad") : null), EVERY_MS);
}

function headline(status) {
  const share = h("progress", { class: "share", max: "100", value: status.percent, aria: { label: `Share of version ${status.candidate}` } });
  return [
    h("div", { class: "headline" }, stateBadge(status.state), h("p", {}, `Version ${status.stable} to ${status.candidate}, ${decimal(status.percent)} % since ${clock(status.since)}; steps ${status.spec.steps.join(", ")}, then 100 %`)),
    share,
    status.reason ? h("p", { class: "text" }, status.reason) : null,
  ];
}
