// Parts of a page that are drawn anew while a person reads it.
import { replace } from "../lib/dom.js";

// Returns a function that draws into a node what a value looks like, if the value has changed. What had the focus
// has it again, where it is there still.
export function redrawing(node, make) {
  let drawn = "";
  return (value) => {
    const text = JSON.stringify(value);
    if (text === drawn) return;
    drawn = text;
    const had = node.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    const left = had === null ? 0 : document.activeElement.scrollLeft;
    replace(node, make(value));
    const again = had === null ? null : [...node.querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === had && each.tabIndex === 0);
    again?.focus({ preventScroll: true });
    if (again) again.scrollLeft = left;
  };
}
