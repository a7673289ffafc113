// An ensemble as a drawing: each step one layer after what it reads. Pure.

// Returns { nodes, edges } of a configuration.
//
// nodes: { id, kind: "input" | "step" | "output", title, model, version, layer, when }
// edges: { from, to, tensor, condition }, where `condition` is "" or when the tensor lets the step run.
export function graphOf(config) {
  const steps = config.ensemble_scheduling?.step ?? [];
  const inputs = (config.input ?? []).map(({ name }) => ({ id: `input ${name}`, kind: "input", title: name }));
  const outputs = (config.output ?? []).map(({ name }) => ({ id: `output ${name}`, kind: "output", title: name }));
  const made = steps.map((step, index) => ({
    id: `step ${index}`, kind: "step", title: step.model_name, model: step.model_name, when: condition(config, index),
    version: Number(step.model_version) > 0 ? String(step.model_version) : "",
  }));
  const nodes = [...inputs, ...made, ...outputs];
  const edges = edgesOf(steps, inputs, made, outputs);
  return { nodes: layered(nodes, edges), edges };
}

// When a step runs: { tensor, negated }, or null for always.
function condition(config, index) {
  const text = config.parameters?.[`step.${index}.when`]?.string_value ?? "";
  return text ? { tensor: text.replace(/^!/, ""), negated: text.startsWith("!") } : null;
}

function edgesOf(steps, inputs, made, outputs) {
  const writer = new Map(inputs.map((node) => [node.title, node.id]));
  for (const [index, step] of steps.entries()) {
    for (const tensor of Object.values(step.output_map ?? {})) writer.set(tensor, made[index].id);
  }
  const edges = [];
  const add = (tensor, to, said) => {
    if (writer.has(tensor)) edges.push({ from: writer.get(tensor), to, tensor, condition: said });
  };
  for (const [index, step] of steps.entries()) {
    const { when, id } = made[index];
    for (const tensor of new Set(Object.values(step.input_map ?? {}))) add(tensor, id, "");
    if (when) add(when.tensor, id, `only if ${when.negated ? "not " : ""}${when.tensor}`);
  }
  for (const { title, id } of outputs) add(title, id, "");
  return edges;
}

// Gives each node its layer: one more than the last of those that it reads; outputs stand last.
function layered(nodes, edges) {
  const layer = new Map(nodes.map(({ id }) => [id, 0]));
  for (let round = 0; round < nodes.length; round += 1) { // as many as the longest way can have
    let moved = false;
    for (const { from, to } of edges) {
      if (layer.get(to) <= layer.get(from) && layer.get(from) < nodes.length) {
        layer.set(to, layer.get(from) + 1);
        moved = true;
      }
    }
    if (!moved) break;
  }
  const last = Math.max(0, ...layer.values());
  return nodes.map((node) => ({ ...node, layer: node.kind === "output" ? last : layer.get(node.id) }));
}

// Returns nodes and edges in which no edge passes over a layer: a long one goes through points, of kind "pass".
function divided({ nodes, edges }) {
  const layer = new Map(nodes.map((node) => [node.id, node.layer]));
  const points = [];
  const parts = edges.map((edge, number) => {
    const way = [edge.from];
    for (let between = layer.get(edge.from) + 1; between < layer.get(edge.to); between += 1) {
      points.push({ id: `pass ${number} ${between}`, kind: "pass", title: "", layer: between });
      way.push(points.at(-1).id);
    }
    return { ...edge, way: [...way, edge.to] };
  });
  return { nodes: [...nodes, ...points], edges: parts };
}

// Returns the nodes of each layer, those in the same line near each other that read from each other.
function ordered({ nodes, edges }) {
  const steps = edges.flatMap(({ way }) => way.slice(1).map((to, place) => ({ from: way[place], to })));
  const rows = new Map();
  const layers = [];
  for (let number = 0; number <= Math.max(0, ...nodes.map((node) => node.layer)); number += 1) {
    const here = nodes.filter((node) => node.layer === number).map((node, place) => {
      const read = steps.filter((step) => step.to === node.id && rows.has(step.from)).map(({ from }) => rows.get(from));
      return { node, place, at: read.length ? read.reduce((sum, row) => sum + row, 0) / read.length : place };
    });
    here.sort((one, other) => one.at - other.at || one.place - other.place);
    for (const [row, { node }] of here.entries()) rows.set(node.id, row - (here.length - 1) / 2);
    layers.push(here.map(({ node }) => node));
  }
  return layers;
}

const END = { width: 104, height: 36 };
const PASS = { width: 20, height: 20 };

// Returns the place of each node and edge in pixels: { width, height, boxes, lines }.
//
// width, height: of a step. down: whether layers go from top to bottom (on a telephone) rather than from left to
// right. gap: between layers; beside: between nodes of one.
export function plan(graph, { width = 176, height = 76, gap = 80, beside = 20, margin = 10, down = false }) {
  const whole = divided(graph);
  const sizes = { step: { width, height }, input: END, output: END, pass: PASS };
  const layers = ordered(whole).map((nodes) => nodes.map((node) => ({ ...node, ...sizes[node.kind] })));
  const [along, across] = down ? ["height", "width"] : ["width", "height"];
  const used = layers.map((nodes) => nodes.reduce((sum, node) => sum + node[across] + beside, -beside));
  const breadth = Math.max(...used) + 2 * margin;
  const boxes = [];
  let start = margin;
  for (const [number, nodes] of layers.entries()) {
    const deep = Math.max(...nodes.map((node) => node[along]));
    for (const node of nodes) if (node.kind === "pass") node[along] = deep;
    let side = (breadth - used[number]) / 2;
    for (const node of nodes) {
      const first = start + (deep - node[along]) / 2;
      boxes.push({ ...node, x: down ? side : first, y: down ? first : side });
      side += node[across] + beside;
    }
    start += deep + gap;
  }
  const length = start - gap + margin;
  const at = new Map(boxes.map((box) => [box.id, box]));
  const lines = parallel(whole.edges).map((edge) => line(edge, edge.way.map((id) => at.get(id)), down));
  const [wide, high] = down ? [breadth, length] : [length, breadth];
  return { width: wide, height: high, boxes: boxes.filter((box) => box.kind !== "pass"), lines };
}

// Numbers the edges between the same two nodes, so that their words stand below each other, and says of several
// edges of a tensor that leave a node which one has its word.
function parallel(edges) {
  const counts = new Map();
  const said = new Set();
  return edges.map((edge) => {
    const key = `${edge.way[0]}\n${edge.way[1]}`;
    const tensor = `${edge.way[0]}\n${edge.condition || edge.tensor}`;
    const place = counts.get(key) ?? 0;
    counts.set(key, place + 1);
    const spoken = !said.has(tensor);
    said.add(tensor);
    return { ...edge, place, spoken };
  });
}

function line(edge, ways, down) {
  const ends = ways.slice(1).map((to, place) => [leaving(ways[place], down), entering(to, down)]);
  const path = ends.map(([start, end], place) => `${place ? "L" : "M"}${start} ${curve(start, end, down)}`).join(" ");
  const [[start, end]] = ends;
  return { ...edge, path, x: (start[0] + end[0]) / 2, y: (start[1] + end[1]) / 2 + 28 * edge.place };
}

const leaving = ({ x, y, width, height }, down) => (down ? [x + width / 2, y + height] : [x + width, y + height / 2]);
const entering = ({ x, y, width, height }, down) => (down ? [x + width / 2, y] : [x, y + height / 2]);

function curve(start, end, down) {
  const bend = (down ? end[1] - start[1] : end[0] - start[0]) / 2;
  const first = down ? [start[0], start[1] + bend] : [start[0] + bend, start[1]];
  const second = down ? [end[0], end[1] - bend] : [end[0] - bend, end[1]];
  return `C${first} ${second} ${end}`;
}
