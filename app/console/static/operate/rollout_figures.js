// What is known of both versions of a rollout, in tables.
import { badge, h, note, section } from "../lib/dom.js";
import { clock, count, decimal, ms, percent } from "../lib/format.js";
import { plainTable } from "./plain_table.js";

const LOOKS = { step: "busy", loading: "busy", tape: "busy", shadow: "busy", promoted: "good", done: "good", failed: "bad", rolling_back: "bad", paused: "busy", aborted: "bad" };

export function stateBadge(state) {
  return badge(state.replaceAll("_", " "), LOOKS[state] ?? "");
}

// A value with the interval in which it lies with 95 %.
function estimate(found, text) {
  return found ? `${text(found.value)} (${text(found.low)} to ${text(found.high)})` : "–";
}

function largest(reasons, most = 3) {
  return Object.entries(reasons).sort((one, other) => other[1] - one[1]).slice(0, most);
}

export function versions(status) {
  const { stable, candidate } = status.figures;
  const rows = [
    ["Answers requests", `${decimal(100 - status.percent)} %`, `${decimal(status.percent)} %`],
    ["Requests", count(stable.requests), count(candidate.requests)],
    ["Errors", estimate(stable.error_rate, percent), estimate(candidate.error_rate, percent)],
    ...["0.5", "0.95", "0.99"].map((quantile) => [
      `p${Number(quantile) * 100}`, estimate(stable.latency_ms[quantile], ms), estimate(candidate.latency_ms[quantile], ms),
    ]),
    ["Repeated by the stable version", "", count(status.total.candidate.rescued)],
  ];
  const { mirror } = status.total;
  if (mirror.compared || mirror.failed) {
    rows.push(["Mirrored and compared", "", count(mirror.compared)]);
    rows.push(["Of these as expected", "", estimate(status.figures.agreement, percent)]);
  }
  const heads = ["Figure", `Version ${status.stable} (stable)`, `Version ${status.candidate} (candidate)`];
  return section("Both versions", plainTable("Both versions", heads, rows), failures(status));
}

function failures(status) {
  const found = largest(status.total.candidate.reasons);
  if (!found.length) return null;
  const items = found.map(([text, number]) => h("li", { class: "text" }, `${count(number)} times: ${text}`));
  return h("div", {}, h("h3", {}, "What the candidate failed by"), h("ul", {}, items));
}

export function judgement(status) {
  const { verdict, spec } = status;
  const limit = 1 / (1 - (spec.judge?.confidence ?? 0.999));
  const rows = Object.entries(verdict.evidence).map(([rule, value]) => {
    return [rule, decimal(value), value >= limit ? badge("alarm", "bad") : badge("no alarm", "good")];
  });
  const table = rows.length
    ? plainTable("Evidence", ["Rule", "Evidence against the candidate", `Alarm from ${count(limit)} on`], rows)
    : note("Nothing has been judged yet.");
  const told = verdict.detectable < 1
    ? `An error rate of ${percent(verdict.detectable)} would have been noticed by now, with 95 %.`
    : "Too few requests to notice any error rate.";
  const words = [verdict.waiting, verdict.holds].filter(Boolean).map((text) => h("p", { class: "text" }, text));
  const alarms = verdict.alarms.map((text) => note(text, "bad"));
  return section("Judge", alarms, words, table, h("p", { class: "quiet" }, told), taped(status));
}

// What recorded requests have shown.
function taped({ tape }) {
  if (!tape) return null;
  const { mirror } = tape;
  const decided = tape.decided || "Recorded requests are being repeated.";
  const rows = (tape.worst ?? []).map((each) => [each.row, each.id || "–", each.why]);
  return h("div", {}, h("h3", {}, "Recorded requests"), h("p", { class: "text" }, decided),
    h("p", {}, `${count(mirror.compared + mirror.failed)} repeated, ${count(mirror.failed)} failed, ${count(mirror.differing + mirror.disagreeing)} outside the rules.`),
    rows.length ? plainTable("The worst rows", ["Row", "Id", "Why"], rows) : null);
}

export function events(status) {
  const rows = [...status.history].reverse().map((each) => {
    return [clock(each.at), each.state.replaceAll("_", " "), `${decimal(each.percent)} %`, each.who, each.why];
  });
  return section("This rollout", plainTable("Events of this rollout", ["When", "State", "Weight", "By", "Why"], rows));
}

export function served(history) {
  const rows = [...history.events].reverse().map((each) => {
    const other = each.candidate ? ` (beside ${each.candidate})` : "";
    return [new Date(each.at * 1000).toLocaleString("en-GB"), each.what, `${each.version || "none"}${other}`, each.who, each.why];
  });
  const rejected = history.rejected.map((each) => note(`Version ${each.version} gets no requests: ${each.why} (${each.who})`, "bad"));
  const now = history.version ? `Version ${history.version} answers requests that name none.` : "No version answers requests that name none.";
  return section("What this model has served", h("p", {}, now), rejected, plainTable("What this model has served", ["When", "What", "Version", "By", "Why"], rows));
}
