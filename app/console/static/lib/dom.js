// Elements. Whatever a model, a client or a log line says is a text node: there is no markup in strings.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "selected", "multiple"]);

// h("p", { class: "note", on: { click } }, "text", node): null and false are left out, arrays are opened.
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "aria") {
      for (const [key, text] of Object.entries(value)) node.setAttribute(`aria-${key}`, text);
    } else if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...flat(children));
  return node;
}

// The same for SVG, whose elements have a namespace.
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...flat(children));
  return node;
}

function flat(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
}

export function replace(node, ...children) {
  node.replaceChildren(...flat(children));
}

// Returns the address of a page: link("drift", "a model").
export function link(...segments) {
  return `#/${segments.filter((each) => each !== "").map(encodeURIComponent).join("/")}`;
}

// A button that is disabled while its action runs, and tells in words why that failed.
export function button(text, action, { kind = "", title, disabled = false } = {}) {
  const node = h("button", { type: "button", class: kind, title, disabled }, text);
  node.addEventListener("click", async () => {
    node.disabled = true;
    try {
      await action();
    } catch (error) {
      if (error.name !== "AbortError") notify(error.message, "bad");
    } finally {
      node.disabled = false;
    }
  });
  return node;
}

let fields = 0;

export function field(label, input, hint = "") {
  input.id ||= `field-${(fields += 1)}`;
  const said = hint ? h("small", { id: `${input.id}-hint` }, hint) : null;
  if (said) input.setAttribute("aria-describedby", said.id);
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, said);
}

// options: [value, text] each.
export function select(options, value) {
  const make = ([each, text]) => h("option", { value: each, selected: each === value }, text);
  return h("select", {}, options.map(make));
}

export function note(text, look = "") {
  return h("p", { class: `note ${look}`, role: look === "bad" ? "alert" : null }, text);
}

export function badge(text, look = "") {
  return h("span", { class: `badge ${look}` }, text);
}

// rows: [title, text or node] each.
export function facts(rows) {
  const row = ([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value));
  return h("dl", { class: "facts" }, rows.map(row));
}

export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

export function copyable(text) {
  const code = h("pre", { tabindex: "0" }, text);
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(code.textContent);
    notify("Copied", "good");
  });
  return h("div", { class: "copyable" }, code, copy);
}

export function download(name, parts, type = "application/octet-stream") {
  const url = URL.createObjectURL(new Blob([parts].flat(), { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

const SHOWN_MS = 6000;

export function notify(text, look = "") {
  const node = note(text, look);
  document.getElementById("notices").append(node);
  setTimeout(() => node.remove(), SHOWN_MS);
}

// Asks in a dialog; resolves to whether the action was chosen. `fields` are nodes of the form.
export function ask({ title, text, action, danger = false, fields: inputs = [] }) {
  const act = h("button", { value: "yes", class: danger ? "danger" : "primary" }, action);
  const cancel = h("button", { type: "button" }, "Cancel");
  const parts = [h("h2", {}, title), h("p", {}, text), ...inputs, h("menu", {}, cancel, act)];
  const form = h("form", { method: "dialog" }, parts);
  const dialog = h("dialog", { aria: { label: title } }, form);
  cancel.addEventListener("click", () => dialog.close(""));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}
