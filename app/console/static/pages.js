// The registry of pages: one line a page.
//
// path: of location.hash; `:name` is a segment, decoded, `:name?` one that may be missing.
// nav:  the page's word in the navigation; "" for a page that others link to.
// load: the module, whose `show(view, { params, signal, title })` fills an empty element.
export const pages = [
  { path: "", nav: "Models", load: () => import("./pages/overview.js") },
  { path: "model/:model/:version?", nav: "", load: () => import("./pages/model.js") },
  { path: "try/:model/:version?", nav: "", load: () => import("./pages/try.js") },
  { path: "graph/:model", nav: "", load: () => import("./pages/graph.js") },
  { path: "rollout/:model?", nav: "Rollouts", load: () => import("./pages/rollout.js") },
  { path: "tape/:model?", nav: "Tape", load: () => import("./pages/tape.js") },
  { path: "tape/:model/:row", nav: "", load: () => import("./pages/tape_row.js") },
  { path: "drift/:model?", nav: "Drift", load: () => import("./pages/drift.js") },
  { path: "cost", nav: "Cost", load: () => import("./pages/cost.js") },
  { path: "config/:model?", nav: "", load: () => import("./pages/config.js") },
  { path: "logs", nav: "Log", load: () => import("./pages/logs.js") },
  { path: "traces/:number?", nav: "Traces", load: () => import("./pages/traces.js") },
  { path: "server", nav: "Server", load: () => import("./pages/server.js") },
];
