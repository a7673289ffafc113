// The newest rows of all versions: what changed is asked for once a second while this page can be seen.
import { get } from "./api.js";

const EVERY_MS = 1000;

class Live {
  models = new Map();
  server = {};
  changed = [];
  gone = [];
  alerts = [];
  problem = "";
  status = 0;
  #cursor = "";
  #watchers = new Set();
  #timer = 0;
  #asking = false;
  #again = false;

  // Calls `watcher` with this object, at once where there are rows already and after each answer.
  watch(watcher, signal) {
    this.#watchers.add(watcher);
    signal.addEventListener("abort", () => this.#watchers.delete(watcher));
    if (this.#cursor) {
      this.changed = [...this.models.keys()];
      watcher(this);
    } else this.#ask();
  }

  // Forgets everything: another token may see other models.
  restart() {
    this.#cursor = "";
    this.models.clear();
    if (this.#asking) this.#again = true;
    else this.#ask();
  }

  resume() {
    if (!document.hidden) this.#ask();
  }

  async #ask() {
    if (this.#asking || document.hidden) return;
    this.#asking = true;
    clearTimeout(this.#timer);
    try {
      const answer = await get(`/console/live?since=${this.#cursor}`);
      if (!this.#again) this.#take(answer);
    } catch (error) {
      this.problem = error.message;
      this.status = error.status ?? 0;
      this.#cursor = "";
    }
    this.#asking = false;
    if (this.#again) {
      this.#again = false;
      this.#ask();
      return;
    }
    for (const watcher of [...this.#watchers]) watcher(this);
    this.#timer = setTimeout(() => this.#ask(), EVERY_MS);
  }

  #take(answer) {
    this.#cursor = answer.cursor;
    this.server = answer.server;
    this.alerts = answer.alerts;
    this.problem = answer.problem;
    this.status = answer.status;
    this.changed = answer.models.map((row) => row.id);
    for (const row of answer.models) this.models.set(row.id, row);
    this.gone = [];
    if (answer.ids) {
      const ids = new Set(answer.ids);
      this.gone = [...this.models.keys()].filter((id) => !ids.has(id));
      for (const id of this.gone) this.models.delete(id);
    }
  }
}

export const live = new Live();
document.addEventListener("visibilitychange", () => live.resume());

// Returns the figures of a version over the last `span` seconds, of all versions for no name.
export function history(name, version, span, options) {
  const model = encodeURIComponent(name);
  return get(`/console/history?model=${model}&version=${encodeURIComponent(version)}&span=${span}`, options);
}

// Returns the loads, failures and unloads of a model that the console has seen, the latest first:
// { at, name, version, word, look, load_s, reason } each.
export async function events(name, options) {
  return (await get(`/console/events?model=${encodeURIComponent(name)}`, options)).events;
}
