// What the server tells of a model, as the form and its snippets need it.
import { get, modelPath, token } from "../lib/api.js";
import { live } from "../lib/live.js";
import { formOf } from "../tensors/kinds.js";

const MOST_STEPS = 64;
const GRPC_PORT = 8001;

// Returns { metadata, config, form }; the configurations of an ensemble's steps are read, too.
export async function describe(model, version, signal) {
  const path = modelPath(model, version);
  const [metadata, config] = await Promise.all([get(path, { signal }), get(`${path}/config`, { signal })]);
  const steps = await stepConfigs(config, signal);
  return { metadata, config, form: formOf(metadata, config, (name) => steps.get(name) ?? null) };
}

async function stepConfigs(config, signal) {
  const found = new Map();
  const left = [config];
  while (left.length && found.size < MOST_STEPS) {
    const steps = left.pop().ensemble_scheduling?.step ?? [];
    const names = [...new Set(steps.map((step) => step.model_name))].filter((name) => !found.has(name));
    const read = (name) => get(`${modelPath(name)}/config`, { signal }).catch(() => null); // one that is not ready
    const configs = await Promise.all(names.map(read));
    for (const [place, each] of configs.entries()) {
      found.set(names[place], each);
      if (each) left.push(each);
    }
  }
  return found;
}

// Returns { url, grpc, tokens }: where programs reach the server.
export function addresses() {
  const url = (live.server.url || location.origin).replace(/\/$/, "");
  const grpc = live.server.grpc || `${new URL(url).hostname}:${GRPC_PORT}`;
  return { url, grpc, tokens: Boolean(live.server.tokens || token()) };
}
