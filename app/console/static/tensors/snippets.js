// The request of the form as a line of shell and as programs, each of which runs as it is. Pure.
//
// request: { url, grpc, model, version, inputs, outputs, parameters, decoupled, sequence, tokens }
//   inputs: see requests.js; one that is a person's file has its name as `file`.
//   sequence: null, or its id, of which the snippet makes a sequence of one request.
import { curl } from "./curl.js";
import { python, pythonFiles } from "./python.js";

// Returns [{ title, text, files: [{ name, bytes }] }]; files are what a snippet reads and the page can save.
export function snippets(request) {
  return [
    { title: "curl", ...curl(request) },
    { title: "Python (tritonclient)", text: python(request, "tritonclient"), files: pythonFiles(request) },
    { title: "nereid_client", text: python(request, "nereid_client"), files: pythonFiles(request) },
  ];
}
