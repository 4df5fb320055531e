/* The state of the page: the chosen graph, the visible part of it, and the open operator. */

const data = JSON.parse(byId("data").textContent);
data.graphs = data.graphs.map((graphs) => graphs.map((graph) => new Flow(graph)));

const view = { graph: [0, 0], mode: "all", selected: null };
const panes = SIDES.map((_, side) => new Pane(side, open, reach));
const panel = new Panel(data, go, close);

const flow = (side) => data.graphs[side][view.graph[side]];
const links = (side, node) => (side ? node.from : node.to) ?? [];

/* Return the operators of the other side that belong to `shown`, with new or removed ones among them. The layers of an
   affine may be far away, so they count only for the selected affine. */
function mapped(side, shown) {
  const other = 1 - side, target = flow(other);
  const found = new Set();
  if (!target || !flow(side)) return found;
  for (const index of shown) {
    const node = flow(side).nodes[index];
    const selected = view.selected?.side === side && view.selected.node === index;
    if (side === 0 && node.status === "folded" && !selected) continue;
    for (const [graph, place] of links(side, node)) if (graph === view.graph[other]) found.add(place);
  }
  const edge = [...found];
  while (edge.length && found.size < 2 * EVERYTHING) {
    const at = edge.pop();
    for (const next of [...target.before(at), ...target.after(at)]) {
      if (found.has(next) || links(other, target.nodes[next]).length) continue;
      found.add(next);
      edge.push(next);
    }
  }
  return found;
}

function everything(side) {
  return new Set(flow(side)?.nodes.keys() ?? []);
}

/* Lay out the part of the graphs that the controls choose. */
function draw() {
  const lead = view.mode === "around" && view.selected ? view.selected.side : flow(0) ? 0 : 1;
  const length = flow(lead)?.nodes.length ?? 0;
  const start = byId("range-start");
  let shown;
  if (view.mode === "around" && view.selected) shown = flow(lead).around(view.selected.node, Number(byId("reach-steps").value) || 4);
  else if (view.mode === "range") {
    start.max = Math.max(0, length - RANGE / 2);
    start.step = RANGE / 4;
    const first = Number(start.value), last = Math.min(length, first + RANGE);
    byId("range-text").textContent = `${first + 1}–${last} of ${length}`;
    shown = new Set(Array.from({ length: last - first }, (_, i) => first + i));
  } else shown = everything(lead);
  const whole = view.mode === "all";
  const began = performance.now();
  panes[lead].draw(flow(lead), shown);
  panes[1 - lead].draw(flow(1 - lead), whole ? everything(1 - lead) : mapped(lead, shown));
  document.documentElement.dataset.layout = Math.round(performance.now() - began);
  byId("range").hidden = view.mode !== "range";
  byId("reach").hidden = view.mode !== "around";
  byId("mode").value = view.mode;
  mark();
}

/* Mark the selection and its counterparts. */
function mark() {
  const marked = [new Map(), new Map()];
  if (view.selected) {
    const { side, node } = view.selected;
    marked[side].set(node, "selected");
    for (const [graph, index] of links(side, flow(side).nodes[node])) if (graph === view.graph[1 - side]) marked[1 - side].set(index, "other");
  }
  panes.forEach((pane, side) => pane.mark(marked[side]));
}

function select(side, node) {
  view.selected = { side, node };
  byId("mode").querySelector('[value="around"]').disabled = false;
  mark();
}

/* Open the panel of an operator that is on the page. */
function open(side, node) {
  select(side, node);
  panel.show(side, view.graph[side], node);
  panes.forEach((pane) => pane.centre());
  byId("graph-status").textContent = "";
}

/* Show an operator that is not drawn. */
function reach(side, node) {
  const other = view.graph.slice();
  go(side, other[side], node, false);
  panes[side].focusNode(node);
}

/* Go to an operator of any graph, and open it. */
function go(side, graph, node, opening = true) {
  if (view.graph[side] !== graph) {
    const place = scopes.findIndex(({ numbers }) => numbers[side] === graph);
    view.graph = scopes[place].numbers.map((number) => number ?? -1);
    byId("scope").value = place;
    start();
  }
  if (node === null || !flow(side)) return close();
  const hidden = !panes[side].shown.has(node);
  select(side, node);
  if (hidden) {
    if (view.mode === "range" && side === 0) byId("range-start").value = Math.max(0, node - RANGE / 4);
    else view.mode = "around";
    draw();
    if (!panes[side].shown.has(node)) {
      view.mode = "around";
      draw();
    }
  }
  if (opening) open(side, node);
  else panes.forEach((pane) => pane.centre());
  byId("graph").scrollIntoView({ block: "start" });
}

function close() {
  const selected = view.selected;
  panel.hide();
  if (selected) panes[selected.side].focusNode(selected.node);
}

/* Show the chosen graphs: all of them, or a range if they are large. */
function start() {
  const large = SIDES.some((_, side) => (flow(side)?.nodes.length ?? 0) > EVERYTHING);
  view.mode = large ? "range" : "all";
  view.selected = null;
  byId("mode").querySelector('[value="all"]').disabled = large;
  byId("mode").querySelector('[value="around"]').disabled = true;
  byId("range-start").value = 0;
  draw();
}

/* Graphs of both sides that are the same part of the model: [position in the source or null, in the result or null].
   Graphs of one title are matched by their order. */
const scopes = [];
data.graphs.forEach((graphs, side) => {
  const seen = new Map();
  graphs.forEach(({ title }, number) => {
    const nth = seen.get(title) ?? 0;
    seen.set(title, nth + 1);
    let scope = scopes.filter((other) => other.title === title)[nth];
    if (!scope) scopes.push((scope = { title, numbers: [null, null] }));
    scope.numbers[side] = number;
  });
});

function setUpControls() {
  const scope = byId("scope");
  scope.append(...scopes.map(({ title }, i) => el("option", { value: i, dir: "auto" }, title.slice(0, 80))));
  byId("scope-label").hidden = scopes.length < 2;
  scope.addEventListener("change", () => {
    view.graph = scopes[Number(scope.value)].numbers.map((number) => number ?? -1);
    panel.hide();
    start();
  });
  byId("mode").addEventListener("change", (event) => {
    view.mode = event.target.value;
    draw();
    panes.forEach((pane) => pane.centre());
  });
  byId("range-start").addEventListener("change", draw);
  byId("range-start").addEventListener("input", (event) => {
    byId("range-text").textContent = `from ${Number(event.target.value) + 1}`;
  });
  for (const [id, step] of [["range-back", -RANGE / 2], ["range-next", RANGE / 2]]) {
    byId(id).addEventListener("click", () => {
      byId("range-start").value = Number(byId("range-start").value) + step;
      draw();
    });
  }
  byId("reach-steps").addEventListener("change", draw);
  byId("find").addEventListener("submit", (event) => event.preventDefault());
  byId("find-text").addEventListener("change", (event) => find(event.target.value));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !panel.root.hidden) close();
  });
  const seen = ["layer", "folded", "partial", "kept", "merged", "dead", "gone", "new", "inside"].filter((status) => data.graphs.flat().some(({ nodes }) => nodes.some((node) => node.status === status)));
  byId("legend").append(...seen.map((status) => el("li", {}, badge(status))));
  const names = new Set(data.graphs.flat().flatMap((graph) => graph.nodes.map((_, i) => graph.label(i))));
  byId("find-names").append(...[...names].slice(0, 5000).map((name) => el("option", { value: name })));
}

/* Go to the operator of this name, or to one whose name contains the text. */
function find(text) {
  if (!text) return;
  for (const fits of [(name) => name === text, (name) => name.toLowerCase().includes(text.toLowerCase())]) {
    for (const side of [1, 0]) {
      for (const [graph, { nodes }] of data.graphs[side].entries()) {
        const node = nodes.findIndex((_, i) => fits(data.graphs[side][graph].label(i)));
        if (node >= 0) return go(side, graph, node);
      }
    }
  }
  byId("graph-status").textContent = "No layer has this name.";
}

/* Go to the operator that computes a value of the compiled model, or of the source. */
function goToTensor(name) {
  for (const side of [1, 0]) {
    for (const [graph, { values, producer }] of data.graphs[side].entries()) {
      const value = values.findIndex(([other]) => other === name);
      if (producer.has(value)) return go(side, graph, producer.get(value));
    }
  }
}

const places = new Map();
data.graphs[0].forEach(({ nodes }, graph) => nodes.forEach((node, i) => node.affine !== undefined && places.set(node.affine, [graph, i])));
showSummary(data);
setUpControls();
showAffines(data, places, go);
showPasses(data);
showAlignment(data.alignment, goToTensor);
start();
document.documentElement.dataset.ready = "";
