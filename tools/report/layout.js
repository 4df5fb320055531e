/* Choose the operators of a graph to draw, and lay them out. */

const EVERYTHING = 400; // operators up to which a whole graph is laid out at once
const RANGE = 80;
const NEIGHBOURS = 120;
const STUBS = 24;
const HEIGHT = 46;

/* The edges of a graph: for every operator its producers and readers, with the value between them. */
class Flow {
  constructor(graph) {
    Object.assign(this, graph);
    this.producer = new Map();
    this.readers = graph.values.map(() => []);
    this.nodes.forEach((node, i) => node.out.forEach((value) => value >= 0 && this.producer.set(value, i)));
    this.reads = this.nodes.map((node) => [...new Set([...node.in, ...(node.reads ?? [])])].filter((value) => value >= 0 && this.values[value][2] !== "constant"));
    this.reads.forEach((values, i) => values.forEach((value) => this.readers[value].push(i)));
    this.results = new Set(graph.outputs);
  }

  before(index) {
    return this.reads[index].map((value) => this.producer.get(value)).filter((node) => node !== undefined);
  }

  after(index) {
    return this.nodes[index].out.flatMap((value) => (value >= 0 ? this.readers[value] : []));
  }

  /* Return the operators at most `steps` away from `index`, nearest first. */
  around(index, steps) {
    const found = new Set([index]);
    let edge = [index];
    for (let step = 0; step < steps; step++) {
      const next = [];
      for (const at of edge) {
        for (const other of [...this.before(at), ...this.after(at)]) {
          if (found.has(other) || found.size >= NEIGHBOURS) continue;
          found.add(other);
          next.push(other);
        }
      }
      edge = next;
    }
    return found;
  }

  label(index) {
    const node = this.nodes[index];
    const first = node.out.find((value) => value >= 0);
    return node.name || (first === undefined ? "" : this.values[first][0]);
  }

  /* Return the items to draw for a set of operators, and the edges between them. */
  picture(shown) {
    const items = new Map();
    const edges = new Map();
    const put = (id, item) => items.has(id) || items.set(id, { id, ...item });
    const join = (from, to, value) => {
      const key = `${from} ${to}`;
      if (edges.has(key)) edges.get(key).values.push(value);
      else edges.set(key, { from, to, values: [value] });
    };
    let stubs = 0;
    const order = [...shown].sort((a, b) => a - b);
    for (const i of order) put(`n${i}`, { kind: "node", node: i, title: this.nodes[i].op, text: this.label(i), status: this.nodes[i].status });
    for (const i of order) {
      for (const value of this.reads[i]) {
        const from = this.producer.get(value);
        if (from === undefined) put(`v${value}`, { kind: "value", value, title: this.values[value][2] === "outer" ? "outer value" : "input", text: this.values[value][0] });
        else if (!shown.has(from)) {
          if (!items.has(`u${from}`) && ++stubs > STUBS) continue;
          put(`u${from}`, { kind: "stub", node: from, title: "↑ further up", text: this.label(from) });
        }
        join(from === undefined ? `v${value}` : shown.has(from) ? `n${from}` : `u${from}`, `n${i}`, value);
      }
      const outside = this.after(i).filter((other) => !shown.has(other));
      if (outside.length && ++stubs <= STUBS) {
        put(`d${i}`, { kind: "stub", node: outside[0], title: `↓ ${plural(new Set(outside).size, "reader")} further down`, text: this.label(outside[0]) });
        join(`n${i}`, `d${i}`, -1);
      }
      for (const value of this.nodes[i].out) {
        if (!this.results.has(value)) continue;
        put(`o${value}`, { kind: "value", value, title: "output", text: this.values[value][0] });
        join(`n${i}`, `o${value}`, value);
      }
    }
    if (!this.nodes.length) {
      for (const value of this.inputs) put(`v${value}`, { kind: "value", value, title: "input", text: this.values[value][0] });
    }
    return { items: [...items.values()], edges: [...edges.values()] };
  }
}

const ruler = document.createElement("canvas").getContext("2d");

/* Cut `text` to `width` from its start: the ends of names differ. */
function fitted(text, font, width) {
  ruler.font = font;
  let letters = Array.from(text.slice(-200));
  if (letters.length === text.length && ruler.measureText(text).width <= width) return text;
  while (letters.length > 1 && ruler.measureText(`…${letters.join("")}`).width > width) letters = letters.slice(Math.max(1, letters.length >> 4));
  return `…${letters.join("")}`;
}

/* Return positions of items and lines of edges, in pixels from the top left. */
function arrange({ items, edges }) {
  const family = getComputedStyle(document.body).fontFamily;
  const bold = `600 14px ${family}`, plain = `13px ${family}`;
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ nodesep: 24, ranksep: 34, edgesep: 14, marginx: 16, marginy: 16 });
  for (const item of items) {
    item.title = fitted(item.title, bold, 190);
    item.text = fitted(item.text, plain, 190);
    ruler.font = bold;
    const title = ruler.measureText(item.title).width;
    ruler.font = plain;
    item.width = Math.ceil(Math.max(84, title + 26, ruler.measureText(item.text).width + 26));
    graph.setNode(item.id, { width: item.width, height: HEIGHT });
  }
  edges.forEach((edge) => graph.setEdge(edge.from, edge.to, {}));
  dagre.layout(graph);
  for (const item of items) Object.assign(item, { x: graph.node(item.id).x, y: graph.node(item.id).y });
  const placed = new Map(items.map((item) => [item.id, item]));
  for (const edge of edges) {
    const from = placed.get(edge.from), to = placed.get(edge.to);
    const bends = graph.edge(edge.from, edge.to).points.slice(1, -1).filter(({ y }) => y > from.y + HEIGHT / 2 && y < to.y - HEIGHT / 2);
    edge.points = [{ x: from.x, y: from.y + HEIGHT / 2 }, ...bends, { x: to.x, y: to.y - HEIGHT / 2 }];
  }
  const { width, height } = graph.graph();
  return { items, edges, width: Math.max(width || 0, 1), height: Math.max(height || 0, 1) };
}

/* Return a smooth line through the points of an edge, vertical at both ends. */
function curve(points) {
  const at = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;
  return points.slice(1).reduce((path, to, i) => {
    const from = points[i], half = (from.y + to.y) / 2;
    return `${path}C${at({ x: from.x, y: half })} ${at({ x: to.x, y: half })} ${at(to)}`;
  }, `M${at(points[0])}`);
}
