// What a person may do about a rollout: buttons, each with a question first. Every one is a request to the API.
import { post } from "../lib/api.js";
import { ask, button, field, h, notify, select } from "../lib/dom.js";

const OVER = new Set(["done", "failed", "aborted"]);

// Returns the buttons for a state; `state` "" stands for no rollout. `changed` is called after each action.
export function actions(model, state, rejected, versions, changed) {
  const change = changing(model, changed);
  const on = state && !OVER.has(state);
  const all = on ? [
    button("Set weight…", () => weigh(change)),
    state === "paused"
      ? button("Resume…", () => change({ title: "Resume the rollout", text: "It goes on at the start of its step.", action: "resume" }))
      : button("Pause…", () => change({ title: "Pause the rollout", text: "Nothing changes until somebody resumes it; an alarm still rolls back.", action: "pause" })),
    button("Promote…", () => change({ title: "Promote the candidate", text: "It gets all requests now.", action: "promote" }), { kind: "primary" }),
    button("Abort…", () => change({ title: "Abort the rollout", text: "All requests go back to the stable version, and the candidate is deleted.", action: "abort", danger: true }), { kind: "danger" }),
  ] : [
    button("Start a rollout…", () => start(change, versions), { kind: "primary" }),
    button("Roll back…", () => back(change, versions), { kind: "danger" }),
  ];
  if (rejected && !on) {
    all.push(button("Forget rejections…", () => change({ title: "Forget rejections", text: "Rejected versions may be tried again by the next load.", action: "forget" })));
  }
  return all;
}

function changing(model, changed) {
  return async ({ title, text, action, danger = false, fields = [], body = () => ({}) }) => {
    const why = h("input", { maxlength: "200", autocomplete: "off" });
    const inputs = [...fields, field("Why (for the history)", why)];
    if (!await ask({ title, text, action: title, danger, fields: inputs })) return;
    const path = `/v2/repository/models/${encodeURIComponent(model)}/rollout`;
    const given = why.value.trim() ? { why: why.value.trim() } : {};
    await post(path, { action, ...body(), ...given });
    notify(`${title}: done`, "good");
    await changed();
  };
}

function percentInput(value) {
  return h("input", { type: "number", min: "0", max: "100", step: "any", value, inputmode: "decimal" });
}

function weigh(change) {
  const weight = percentInput("10");
  return change({
    title: "Set the weight", text: "So many of the requests without a version go to the candidate.", action: "set",
    fields: [field("Percent", weight)], body: () => ({ weight: Number(weight.value) }),
  });
}

function start(change, versions) {
  const chosen = h("input", { type: "number", min: "1", step: "1", inputmode: "numeric" });
  const weight = percentInput("");
  return change({
    title: "Start a rollout", text: `The candidate is loaded beside the version in service${versions.length ? ` (${versions.join(", ")})` : ""}.`, action: "start",
    fields: [
      field("Candidate", chosen, "A version of the repository; empty for the newest."),
      field("Percent", weight, "To begin with; empty for the first step of rollout.yaml."),
    ],
    body: () => ({
      ...(chosen.value ? { candidate: Number(chosen.value) } : {}), ...(weight.value ? { weight: Number(weight.value) } : {}),
    }),
  });
}

function back(change, versions) {
  const to = select([["", "what served before"], ...versions.map((each) => [each, `version ${each}`])], "");
  return change({
    title: "Roll back", text: "The other version is loaded, and then gets all requests; newer versions are rejected.", action: "rollback", danger: true,
    fields: [field("To", to)], body: () => (to.value ? { version: Number(to.value) } : {}),
  });
}
