// A table of any number of rows, of which those in sight are elements: sorted by its heads, filtered by a
// text, walked by the arrow keys.
import { h, replace } from "./dom.js";

const ROW_PX = 37;
const MARGIN = 8;
const AT_ONCE = 60;
const WITHIN = "a, button, input, select";

// columns: { key, title, text?: row => string, node?: row => Node, sort?: row => value, align?, hide_narrow? }.
// key: row => id. sort: [column's key, "asc" or "desc"]. filter: row => the text that is searched.
// open: row => the address that Enter and a click lead to.
export function dataTable({ label, columns, key, rows = [], sort = [columns[0].key, "asc"], filter, open }) {
  return new DataTable({ label, columns, key, sort, filter, open }).update(rows);
}

class DataTable {
  #rows = [];
  #shown = [];
  #focused = null;
  #drawn = "";

  constructor(options) {
    Object.assign(this, options);
    this.head = h("tr", { role: "row" }, this.columns.map((column) => this.#header(column)));
    this.body = h("tbody");
    this.table = h("table", { aria: { label: this.label } }, h("thead", {}, this.head), this.body);
    this.box = h("div", { class: "rows", tabindex: "-1" }, this.table);
    this.told = h("p", { class: "quiet", role: "status" });
    this.search = this.filter && h("input", {
      type: "search", placeholder: "Filter", aria: { label: `Filter ${this.label}` }, spellcheck: "false",
      on: { input: () => this.#arrange() },
    });
    this.node = h("div", { class: "table" }, h("div", { class: "bar" }, this.search, this.told), this.box);
    this.box.addEventListener("scroll", () => requestAnimationFrame(() => this.#draw()));
    this.body.addEventListener("keydown", (event) => this.#key(event));
    this.body.addEventListener("click", (event) => this.#click(event));
  }

  // Shows other rows; the focus and the place stay.
  update(rows) {
    this.#rows = rows;
    this.#arrange();
    return this;
  }

  #header(column) {
    const on = { click: () => this.#sortBy(column) };
    const act = h("button", { type: "button", class: "sort", on }, column.title);
    return h("th", { scope: "col", class: classes(column), data: { key: column.key } }, act);
  }

  #sortBy(column) {
    const [current, way] = this.sort;
    this.sort = [column.key, current === column.key && way === "asc" ? "desc" : "asc"];
    this.#arrange();
  }

  #arrange() {
    const words = (this.search?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const kept = this.#rows.filter((row) => {
      const text = words.length ? this.filter(row).toLowerCase() : "";
      return words.every((word) => text.includes(word));
    });
    const [name, way] = this.sort;
    const column = this.columns.find((each) => each.key === name) ?? this.columns[0];
    const value = column.sort ?? ((row) => row[column.key]);
    this.#shown = kept.sort((one, other) => compare(value(one), value(other), way === "asc" ? 1 : -1));
    for (const cell of this.head.children) {
      const sorted = cell.dataset.key === name ? `${way}ending` : "none";
      if (cell.getAttribute("aria-sort") !== sorted) cell.setAttribute("aria-sort", sorted);
    }
    const total = this.#rows.length;
    const told = kept.length === total ? `${total} rows` : `${kept.length} of ${total} rows`;
    if (this.told.textContent !== told) this.told.textContent = told;
    this.table.setAttribute("aria-rowcount", String(kept.length + 1));
    this.#draw(true);
  }

  // Makes elements of the rows in sight, and two that take the place of the others.
  #draw(always = false) {
    const all = this.#shown;
    const seen = this.box.clientHeight || 600;
    const few = all.length <= AT_ONCE;
    const top = Math.min(all.length, Math.floor(this.box.scrollTop / ROW_PX));
    const first = few ? 0 : Math.max(0, top - MARGIN);
    const last = few ? all.length : Math.min(all.length, first + Math.ceil(seen / ROW_PX) + 2 * MARGIN);
    const drawn = `${first}-${last}`;
    if (!always && drawn === this.#drawn) return;
    this.#drawn = drawn;
    const held = this.#held();
    const made = all.slice(first, last).map((row, place) => this.#row(row, first + place));
    replace(this.body, spacer(first), made, spacer(all.length - last));
    if (held) this.#hold(held);
  }

  // What of a row has the focus: { id, place } of the row, and of the link or button in it, -1 for the row itself.
  #held() {
    const { activeElement: active } = document;
    const row = this.body.contains(active) ? active.closest("tr") : null;
    return row && { id: row.dataset.id, place: [...row.querySelectorAll(WITHIN)].indexOf(active) };
  }

  #hold({ id, place }) {
    const row = [...this.body.children].find((node) => node.dataset.id === id);
    const node = place < 0 ? row : row?.querySelectorAll(WITHIN)[place];
    node?.focus({ preventScroll: true });
  }

  #row(row, place) {
    const id = this.key(row);
    const cells = this.columns.map((column, index) => {
      const content = column.node?.(row) ?? column.text?.(row) ?? String(row[column.key] ?? "");
      return h(index ? "td" : "th", { class: classes(column), scope: index ? null : "row" }, content);
    });
    const current = id === this.#focused || (this.#focused === null && place === 0);
    const place_of = { tabindex: current ? "0" : "-1", aria: { rowindex: String(place + 2) } };
    const node = h("tr", { ...place_of, data: { id } }, cells);
    if (this.open) node.classList.add("opens");
    return node;
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    const row = event.target.closest("tr");
    if (!row) return;
    const place = this.#shown.findIndex((each) => String(this.key(each)) === row.dataset.id);
    if (event.key in steps) {
      event.preventDefault();
      const next = Math.max(0, Math.min(this.#shown.length - 1, place + steps[event.key]));
      this.#focused = this.key(this.#shown[next]);
      this.#focus(next);
    } else if (event.key === "Enter" && event.target === row && this.open) {
      location.hash = this.open(this.#shown[place]);
    }
  }

  // Focuses the row that was walked to, and first scrolls it into sight.
  #focus(place) {
    if (this.#shown.length > AT_ONCE) {
      const top = place * ROW_PX;
      const bottom = top + 2 * ROW_PX - this.box.clientHeight;
      this.box.scrollTop = Math.max(bottom, Math.min(this.box.scrollTop, top));
      this.#draw(true);
    }
    for (const node of this.body.children) {
      const chosen = node.dataset.id === String(this.#focused);
      if (node.dataset.id !== undefined) node.tabIndex = chosen ? 0 : -1;
      if (chosen) node.focus();
    }
  }

  #click(event) {
    const row = event.target.closest("tr");
    const own = event.target.closest(WITHIN) || getSelection().toString();
    if (!row || !this.open || own) return;
    const found = this.#shown.find((each) => String(this.key(each)) === row.dataset.id);
    if (found) location.hash = this.open(found);
  }
}

function classes(column) {
  const found = [column.align === "right" && "right", column.hide_narrow && "wide"];
  return found.filter(Boolean).join(" ") || null;
}

function spacer(rows) {
  if (!rows) return null;
  const node = h("tr", { class: "space", aria: { hidden: "true" } });
  node.style.height = `${rows * ROW_PX}px`;
  return node;
}

// What is not known comes last, whichever way.
function compare(one, other, way) {
  const none = (value) => value === null || value === undefined || value === "";
  if (none(one) || none(other)) return none(one) - none(other);
  if (typeof one === "string") return way * one.localeCompare(other, "en", { numeric: true });
  return way * (one - other);
}
