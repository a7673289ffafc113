// The frame around the pages: router, navigation, the server's state, and the dialog for a token.
import { ApiError, setToken, token } from "./lib/api.js";
import { ask, field, h, note, replace } from "./lib/dom.js";
import { live } from "./lib/live.js";
import { count, rate } from "./lib/format.js";
import { pages } from "./pages.js";

const view = document.getElementById("view");
const heading = document.getElementById("title");
let leave = new AbortController();

// Returns the parameters of a path for the segments of an address; null if it is another page's.
function match(path, segments) {
  const parts = path.split("/").filter(Boolean);
  const least = parts.filter((part) => !part.endsWith("?")).length;
  if (segments.length < least || segments.length > parts.length) return null;
  const params = {};
  for (const [place, part] of parts.entries()) {
    const given = segments[place];
    if (part.startsWith(":")) params[part.replace(/^:|\?$/g, "")] = given ?? "";
    else if (part !== given) return null;
  }
  return params;
}

function segmentsOf(hash) {
  const found = hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  try {
    return found.map(decodeURIComponent);
  } catch {
    return ["?"];
  }
}

function title(text) {
  heading.textContent = text;
  document.title = `${text} · Nereid`;
}

async function route() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const segments = segmentsOf(location.hash);
  const page = pages.find((each) => match(each.path, segments));
  mark(page);
  title(page?.nav || "Console");
  const place = h("div");
  replace(view, place);
  if (!page) {
    replace(place, note("There is no such page.", "bad"));
    return;
  }
  try {
    const module = await page.load();
    if (!signal.aborted) await module.show(place, { params: match(page.path, segments), signal, title });
  } catch (error) {
    if (!signal.aborted) told(place, error);
  }
}

// Shows why a page cannot be shown.
function told(place, error) {
  if (!(error instanceof ApiError)) console.error(error);
  place.append(note(error.message || String(error), "bad"));
  if (error.status === 401) askToken();
}

function mark(page) {
  const links = pages.filter((each) => each.nav).map((each) => {
    const current = each === page ? { current: "page" } : {};
    return h("a", { href: `#/${each.path.split("/:")[0]}`, aria: current }, each.nav);
  });
  replace(document.getElementById("nav"), ...links);
}

let asking = null;

// Asks for a token, once at a time, and shows the page again with it.
function askToken() {
  asking ??= (async () => {
    const input = h("input", { type: "password", value: token(), autocomplete: "off", spellcheck: "false" });
    const text = "It is kept in this tab alone, and sent in a header with each request.";
    const given = await ask({ title: "Token", text, action: "Use it", fields: [field("Token", input)] });
    if (given) {
      setToken(input.value.trim());
      live.restart();
      route();
    }
    asking = null;
  })();
}

function status() {
  const { problem, server, status: code } = live;
  if (code === 401) askToken();
  const words = problem ? problem
    : `${server.ready ? "Ready" : "Not ready"} · ${count(server.versions)} versions · ${rate(server.rate)}`;
  const place = document.getElementById("server");
  if (place.textContent !== words) {
    place.textContent = words;
    place.className = problem ? "bad" : server.ready ? "good" : "busy";
  }
}

document.getElementById("token").addEventListener("click", askToken);
document.getElementById("skip").addEventListener("click", () => document.getElementById("main").focus());
window.addEventListener("hashchange", () => {
  window.scrollTo(0, 0);
  route();
});
live.watch(status, new AbortController().signal);
route();
