// Requests to the server's API, through the console, with the token of this tab in a header.

const KEY = "nereid-token";

export class ApiError extends Error {
  // status: of HTTP; 0 if there was no answer.
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setToken(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

// Returns the Response; throws ApiError for a status from 400 on, and if there is no answer.
export async function send(method, path, { headers = {}, body, signal } = {}) {
  const own = token() ? { Authorization: `Bearer ${token()}` } : {};
  let answer;
  try {
    const rest = { credentials: "omit", cache: "no-store", redirect: "error" };
    answer = await fetch(path, { method, headers: { ...own, ...headers }, body, signal, ...rest });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The console does not answer.");
  }
  if (answer.status >= 400) throw new ApiError(answer.status, await reason(answer));
  return answer;
}

// Returns the text of an error: of the server's, of OpenAI's, or of none of them.
async function reason(answer) {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text);
    return typeof error === "string" ? error : error.message;
  } catch {
    return text || `${answer.status} ${answer.statusText}`;
  }
}

async function parsed(answer) {
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

export async function get(path, options) {
  return parsed(await send("GET", path, options));
}

export async function post(path, body = {}, options = {}) {
  const headers = { "Content-Type": "application/json" };
  return parsed(await send("POST", path, { headers, body: JSON.stringify(body), ...options }));
}

// Calls `onEvent` with the data of each server-sent event; returns when the stream ends.
export async function events(path, { method = "POST", body, signal } = {}, onEvent) {
  const headers = { Accept: "text/event-stream", ...(body ? { "Content-Type": "application/json" } : {}) };
  const text = body && typeof body !== "string" ? JSON.stringify(body) : body;
  const answer = await send(method, path, { headers, body: text, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (data.length) onEvent(data.map((line) => line.slice(5).replace(/^ /, "")).join("\n"));
    }
  }
}

// Returns a path of a model: modelPath("simple", "1", "stats").
export function modelPath(name, version = "", rest = "") {
  const numbered = version ? `/versions/${encodeURIComponent(version)}` : "";
  return `/v2/models/${encodeURIComponent(name)}${numbered}${rest ? `/${rest}` : ""}`;
}
