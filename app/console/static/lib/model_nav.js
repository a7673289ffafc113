// What the pages of one model share: links to each other, and the styles of a page.
import { h, link } from "./dom.js";

// current: the word of this page. row: of `live.models`, null while there is none.
export function modelNav(model, version, current, row = null) {
  const pages = [
    ["Model", link("model", model, version)],
    ["Try it", link("try", model, version)],
    row?.kind === "ensemble" ? ["Graph", link("graph", model)] : null,
    ["Configuration", link("config", model)],
    ["Rollout", link("rollout", model)],
    ["Tape", link("tape", model)],
    ["Drift", link("drift", model)],
  ];
  const links = pages.filter(Boolean).map(([word, href]) => {
    return h("a", { href, aria: word === current ? { current: "page" } : {} }, word);
  });
  return h("nav", { class: "pages", aria: { label: `Pages of ${model}` } }, links);
}

// Adds a stylesheet of a page to the document, once.
export function stylesheet(path) {
  const known = [...document.querySelectorAll("link[rel=stylesheet]")].some((each) => each.getAttribute("href") === path);
  if (!known) document.head.append(h("link", { rel: "stylesheet", href: path }));
}
