// How long a request took, and what of that the server did, by its statistics before and after.
import { get, modelPath } from "../lib/api.js";

const PARTS = {
  queue: "queue", compute_input: "input", compute_infer: "compute", compute_output: "output", cache_hit: "cache",
};

// Returns the statistics of all versions; null where they may not be read.
export async function statistics(model, signal) {
  try {
    return (await get(modelPath(model, "", "stats"), { signal })).model_stats;
  } catch (error) {
    if (signal.aborted) throw error;
    return null;
  }
}

// Returns { requests, total, parts: [[word, ms]] } of the requests between two readings; null if unknown. Pure.
export function between(before, after, version) {
  const of = (all) => all?.find((each) => String(each.version) === String(version))?.inference_stats;
  const [first, last] = [of(before), of(after)];
  if (!first || !last) return null;
  const requests = last.success.count - first.success.count;
  if (requests < 1) return null;
  const mean = (name) => (last[name].ns - first[name].ns) / requests / 1e6;
  const moved = Object.entries(PARTS).filter(([name]) => last[name].count > first[name].count);
  const parts = moved.map(([name, word]) => [word, mean(name)]);
  return { requests, total: mean("success"), parts };
}

const ms = (value) => `${value.toFixed(value < 10 ? 2 : 1)} ms`;

// Returns a sentence of it.
export function told(seconds, share) {
  const whole = `${ms(seconds * 1000)} from here to the answer`;
  if (!share) return `${whole}.`;
  const parts = share.parts.map(([word, value]) => `${word} ${ms(value)}`).join(", ");
  const mean = share.requests > 1 ? ` (mean of ${share.requests} requests meanwhile)` : "";
  return `${whole}, of which ${ms(share.total)} in the server${mean}${parts ? `: ${parts}` : ""}.`;
}
