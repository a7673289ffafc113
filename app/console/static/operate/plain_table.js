// A small table of a few rows, as text.
import { h } from "../lib/dom.js";

// heads: titles; rows: lists of texts or nodes. The first cell of a row names it; `wide` are places that narrow screens leave out.
export function plainTable(label, heads, rows, wide = []) {
  const look = (place) => (wide.includes(place) ? "wide" : null);
  const head = h("tr", {}, heads.map((text, place) => h("th", { scope: "col", class: look(place) }, text)));
  const body = rows.map((row) => h("tr", {}, row.map((cell, place) => {
    return h(place ? "td" : "th", { scope: place ? null : "row", class: look(place) }, cell);
  })));
  return h("div", { class: "scrolls", tabindex: "0", role: "group", aria: { label } }, h("table", { aria: { label } }, h("thead", {}, head), h("tbody", {}, body)));
}
