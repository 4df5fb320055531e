/* The panel of one operator: its values and attributes, the affines folded into it, or the reason why it stays. */

const LISTED = 40;

/* A panel calls `jump(side, graph, node)` for a link, and `close()` when it is closed. */
class Panel {
  constructor(data, jump, close) {
    Object.assign(this, { data, jump, close, root: byId("panel") });
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
    });
  }

  hide() {
    this.root.hidden = true;
    this.root.replaceChildren();
  }

  show(side, graph, index) {
    const flow = this.data.graphs[side][graph];
    const node = flow.nodes[index];
    const closing = el("button", { type: "button", class: "close", "aria-label": "Close the panel", click: () => this.close() }, "×");
    this.root.replaceChildren(...[
      closing,
      el("p", { class: "quiet" }, `${SIDES[side]} · ${flow.title}`),
      el("h3", { id: "panel-title", tabindex: -1 }, node.op, " ", node.name ? named(node.name) : null),
      el("p", {}, badge(node.status)),
      ...this.counterparts(side, node),
      this.affine(node),
      this.layer(node),
      this.inside(side, node),
      this.values("Reads", node.in, flow),
      this.values("Reads in its subgraphs", node.reads ?? [], flow),
      this.values("Writes", node.out, flow),
      this.attributes(node),
    ].filter(Boolean));
    this.root.hidden = false;
    this.root.scrollTop = 0;
    byId("panel-title").focus({ preventScroll: true });
  }

  /* Return buttons that lead to the counterparts of an operator. */
  counterparts(side, node) {
    const other = 1 - side;
    return (side ? node.from ?? [] : node.to ?? []).map(([graph, index]) => {
      const there = this.data.graphs[other][graph].nodes[index];
      return el("button", { type: "button", class: "link", click: () => this.jump(other, graph, index) }, `${side ? "was" : "now"} ${there.op} `, named(there.name));
    });
  }

  /* Return the status of an affine. */
  affine(node) {
    if (node.affine === undefined) return null;
    const affine = this.data.affines[node.affine];
    const layers = affine.layers.map((layer) => named(this.data.layers[layer].name));
    return el("section", {},
      el("h4", {}, "This affine"),
      this.module(affine),
      layers.length ? el("p", {}, `${affine.status === "partial" ? "Partly folded" : "Folded"} into `, ...layers.flatMap((layer, i) => (i ? [", ", layer] : [layer])), ".") : null,
      affine.reason ? el("p", { class: "reason" }, el("code", {}, affine.reason), " ", affine.detail) : affine.detail ? el("p", {}, affine.detail) : null,
      affine.notes.length ? el("details", { open: affine.notes.length < 6 }, el("summary", {}, `Attempts (${affine.notes.length})`), el("ul", {}, affine.notes.map((note) => el("li", { dir: "auto" }, note)))) : null,
      ...this.parameters(affine));
  }

  /* Return the path of the torch module that an affine or a layer comes from. */
  module({ module: path }) {
    return path ? el("p", { class: "quiet" }, "module ", named(path)) : null;
  }

  parameters(affine) {
    const charts = Object.entries(affine.params).map(([name, chart]) => channelChart(name, chart));
    return affine.epsilon === null ? charts : [...charts, el("p", { class: "quiet" }, `epsilon ${number(affine.epsilon)}`)];
  }

  /* Return the affines that were folded into a layer. */
  layer(node) {
    if (node.layer === undefined) return null;
    const layer = this.data.layers[node.layer];
    const created = layer.bias_created ? " (new)" : "";
    return el("section", {},
      this.module(layer),
      el("h4", {}, "Weights per channel"),
      rangeChart("range", ...layer.ranges),
      el("p", { class: "quiet" }, "weight ", named(layer.weight), ...(layer.bias ? [", bias ", named(layer.bias), created] : [])),
      layer.remainder ? el("p", {}, "The shift stays as an Add after the layer: ", named(layer.remainder)) : null,
      el("h4", {}, `Folded into this layer (${layer.folds.length})`),
      layer.folds.map((fold, i) => this.fold(fold, i === 0)));
  }

  fold(fold, open) {
    const affine = this.data.affines[fold.affine];
    const crossed = fold.crossed.length ? el("p", {}, "Moved past ", ...fold.crossed.flatMap((name, i) => (i ? [", ", named(name)] : [named(name)])), ".") : null;
    return el("details", { class: "fold", open },
      el("summary", {}, affine.op, " ", named(affine.name), el("span", { class: "quiet" }, fold.direction === "backward" ? " of its result" : " of its data")),
      crossed,
      ...this.parameters(affine),
      channelChart("scale as folded", fold.scale), channelChart("shift as folded", fold.shift));
  }

  inside(side, node) {
    if (!node.graphs) return null;
    return el("section", {}, el("h4", {}, "Subgraphs"), el("ul", {}, node.graphs.map((graph) => {
      const inner = this.data.graphs[side][graph];
      return el("li", {}, el("button", { type: "button", class: "link", click: () => this.jump(side, graph, inner.nodes.length ? 0 : null) }, named(inner.title)), ` ${plural(inner.nodes.length, "operator")}`);
    })));
  }

  values(title, numbers, flow) {
    const present = numbers.filter((value) => value >= 0);
    if (!present.length) return null;
    const items = present.slice(0, LISTED).map((value) => {
      const [name, type, kind] = flow.values[value];
      return el("li", {}, named(name), " ", el("code", {}, type), kind === "value" ? null : el("span", { class: "quiet" }, ` ${kind}`));
    });
    const more = present.length - items.length;
    return el("section", {}, el("h4", {}, title), el("ul", { class: "plain" }, items, more ? el("li", {}, `and ${more} more`) : null));
  }

  attributes(node) {
    if (!node.attrs) return null;
    const rows = Object.entries(node.attrs).map(([name, text]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, el("code", { dir: "auto" }, text))));
    return el("section", {}, el("h4", {}, "Attributes"), el("table", { class: "attributes" }, el("tbody", {}, rows)));
  }
}
