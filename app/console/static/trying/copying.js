// The request of the form as a line of shell and as programs, to copy.
import { button, copyable, download, h, note, replace } from "../lib/dom.js";
import { addresses } from "./describe.js";
import { snippets } from "../tensors/snippets.js";

// make: resolves to a request of snippets.js without the server's addresses.
export function copying(make) {
  const place = h("div");
  const show = async (number) => {
    replace(place);
    try {
      const { text, files } = snippets({ ...(await make()), ...addresses() })[number];
      const saved = files.map(({ name, bytes }) => button(`Save ${name}`, () => download(name, bytes)));
      const words = saved.length ? h("p", {}, "It reads what the page can save: ") : null;
      replace(place, words && h("div", { class: "buttons" }, words, saved), copyable(text));
    } catch (error) {
      replace(place, note(error.message, "bad"));
    }
  };
  const titles = ["curl", "Python (tritonclient)", "Python (nereid_client)"];
  const buttons = titles.map((title, number) => button(title, () => show(number)));
  return h("div", {}, h("div", { class: "buttons" }, buttons), place);
}
