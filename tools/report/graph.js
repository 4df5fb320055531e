/* One of the two graphs on the page: drawing, panning, zooming, walking. */

const SIDES = ["Source", "Compiled"];
const LEAST = 0.08, MOST = 3;

class Pane {
  /* `onOpen(side, node)` is called for an operator, `onReach(side, node)` for one that is not drawn. */
  constructor(side, onOpen, onReach) {
    Object.assign(this, { side, onOpen, onReach, view: { x: 0, y: 0, scale: 1 }, marked: new Map(), shown: new Set() });
    this.layer = svg("g");
    this.canvas = svg("svg", { class: "canvas", role: "group" }, svg("defs", {}, svg("marker", { id: `arrow-${side}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { class: "arrow", d: "M0,0 8,4 0,8z" }))), this.layer);
    this.count = el("span", { class: "quiet" });
    const button = (text, label, click) => el("button", { type: "button", "aria-label": `${label}: ${SIDES[side]}`, title: label, click }, text);
    const zoom = el("span", { class: "group" },
      button("−", "Zoom out", () => this.zoom(1 / 1.3)), button("+", "Zoom in", () => this.zoom(1.3)),
      button("Fit", "Show the whole graph", () => this.fit()));
    byId(`pane-${side}`).append(el("div", { class: "pane-head" }, el("h3", {}, SIDES[side]), this.count, zoom), this.canvas);
    this.listen();
  }

  /* Draw the operators `shown` of `flow`. */
  draw(flow, shown) {
    this.flow = flow;
    this.shown = shown;
    this.items = new Map();
    this.layer.replaceChildren();
    this.canvas.setAttribute("aria-label", `${SIDES[this.side]} graph`);
    this.count.textContent = flow ? (shown.size === flow.nodes.length ? plural(shown.size, "operator") : `${shown.size.toLocaleString("en")} of ${plural(flow.nodes.length, "operator")}`) : "not in this model";
    if (!flow) return;
    this.picture = arrange(flow.picture(shown));
    this.links = { down: new Map(), up: new Map() };
    for (const edge of this.picture.edges) {
      this.link("down", edge.from, edge.to);
      this.link("up", edge.to, edge.from);
      const values = edge.values.filter((value) => value >= 0).map((value) => flow.values[value].slice(0, 2).join(" ").trim());
      this.layer.append(svg("path", { class: "edge", d: curve(edge.points), "marker-end": `url(#arrow-${this.side})` }, svg("title", {}, values.join("\n"))));
    }
    for (const item of this.picture.items) this.layer.append(this.box(item));
    this.rest(this.picture.items.find((item) => item.kind === "node") ?? this.picture.items[0]);
    this.mark();
    this.home();
  }

  link(way, from, to) {
    if (!this.links[way].has(from)) this.links[way].set(from, []);
    this.links[way].get(from).push(to);
  }

  box(item) {
    const status = item.status ? `, ${STATUSES[item.status]}` : "";
    const group = svg("g", {
      class: `box ${item.kind} s-${item.status ?? "none"}`, tabindex: -1, role: item.kind === "value" ? "img" : "button",
      "aria-label": `${item.title} ${item.text}${status}`, transform: `translate(${item.x - item.width / 2} ${item.y - HEIGHT / 2})`,
      click: () => this.dragged || this.activate(item),
      focus: () => this.focused(item),
    },
    svg("rect", { width: item.width, height: HEIGHT, rx: item.kind === "node" ? 6 : 22 }),
    item.kind === "node" ? svg("rect", { class: "stripe", width: 5, height: HEIGHT - 12, x: 5, y: 6, rx: 2.5 }) : null,
    svg("text", { class: "op", x: item.width / 2, y: 19 }, item.title),
    svg("text", { class: "label", x: item.width / 2, y: 36 }, item.text));
    item.element = group;
    this.items.set(item.id, item);
    return group;
  }

  activate(item) {
    if (item.kind === "node") this.onOpen(this.side, item.node);
    else if (item.kind === "stub") this.onReach(this.side, item.node);
  }

  /* Mark operators, as Map(node, "selected" or "other"). */
  mark(marked = this.marked) {
    this.marked = marked;
    for (const item of this.items?.values() ?? []) {
      const how = item.kind === "node" ? marked.get(item.node) : undefined;
      item.element.classList.toggle("selected", how === "selected");
      item.element.classList.toggle("other", how === "other");
    }
  }

  centre() {
    this.settle();
    const item = [...this.marked.keys()].map((node) => this.items?.get(`n${node}`)).find(Boolean);
    if (!item) return;
    if (this.view.scale < 0.8) this.zoom(0.8 / this.view.scale);
    this.reveal(item);
    this.rest(item);
  }

  focusNode(node) {
    this.items?.get(`n${node}`)?.element.focus({ preventScroll: true });
  }

  /* Set the item that Tab leads to. */
  rest(item) {
    if (this.resting) this.resting.element.setAttribute("tabindex", -1);
    this.resting = item;
    item?.element.setAttribute("tabindex", 0);
  }

  focused(item) {
    this.rest(item);
    this.reveal(item);
  }

  /* Centre an item that is not fully visible. */
  reveal(item) {
    const { width, height } = this.size();
    const { x: left, y: top, scale } = this.view;
    const x = item.x * scale + left, y = item.y * scale + top;
    const wide = (item.width / 2) * scale + 8, tall = HEIGHT * scale;
    if (x < wide || y < tall || x > width - wide || y > height - tall) this.lookAt(item.x, item.y);
  }

  /* Walk from the focused item; left and right go to the nearest item at about the same height. */
  walk(key) {
    const at = this.resting;
    const near = (ids) => ids.map((id) => this.items.get(id)).sort((a, b) => Math.abs(a.x - at.x) - Math.abs(b.x - at.x))[0];
    if (key === "ArrowDown") return near(this.links.down.get(at.id) ?? []);
    if (key === "ArrowUp") return near(this.links.up.get(at.id) ?? []);
    const all = [...this.items.values()];
    if (key === "Home") return all.reduce((a, b) => (b.y < a.y ? b : a));
    if (key === "End") return all.reduce((a, b) => (b.y > a.y ? b : a));
    const side = all.filter((item) => (key === "ArrowLeft" ? item.x < at.x - 1 : item.x > at.x + 1) && Math.abs(item.y - at.y) < 60);
    return side.sort((a, b) => Math.hypot(a.x - at.x, 4 * (a.y - at.y)) - Math.hypot(b.x - at.x, 4 * (b.y - at.y)))[0];
  }

  listen() {
    const canvas = this.canvas;
    new ResizeObserver(() => this.settle()).observe(canvas);
    canvas.addEventListener("keydown", (event) => {
      if (!this.resting || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Enter" || event.key === " ") this.activate(this.resting);
      else if (/^(Arrow|Home$|End$)/.test(event.key)) this.walk(event.key)?.element.focus({ preventScroll: true });
      else if (event.key === "+" || event.key === "=") this.zoom(1.3);
      else if (event.key === "-") this.zoom(1 / 1.3);
      else if (event.key === "0") this.fit();
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * 0.0025), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.dragged = false;
      this.grip = { id: event.pointerId, x: event.clientX, y: event.clientY, view: { ...this.view } };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.grip?.id !== event.pointerId) return;
      const x = event.clientX - this.grip.x, y = event.clientY - this.grip.y;
      if (!this.dragged && Math.hypot(x, y) < 5) return;
      if (!this.dragged) canvas.setPointerCapture(event.pointerId);
      this.dragged = true;
      Object.assign(this.view, { x: this.grip.view.x + x, y: this.grip.view.y + y });
      this.apply();
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { this.grip = null; });
    canvas.addEventListener("click", (event) => {
      if (this.dragged) event.stopPropagation();
      this.dragged = false;
    }, true);
  }

  /* Keep the centre when the width changes. */
  settle() {
    const { width } = this.size();
    if (this.width && width !== this.width) {
      this.view.x += (width - this.width) / 2;
      this.apply();
    }
    this.width = width;
  }

  size() {
    return { width: this.canvas.clientWidth || 1, height: this.canvas.clientHeight || 1 };
  }

  apply() {
    const { x, y, scale } = this.view;
    this.layer.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${scale.toFixed(4)})`);
  }

  lookAt(x, y) {
    const { width, height } = this.size();
    Object.assign(this.view, { x: width / 2 - x * this.view.scale, y: height / 2 - y * this.view.scale });
    this.apply();
  }

  zoom(factor, x = this.size().width / 2, y = this.size().height / 2) {
    const scale = Math.min(MOST, Math.max(LEAST, this.view.scale * factor));
    const ratio = scale / this.view.scale;
    this.view = { x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio, scale };
    this.apply();
  }

  /* Show the whole graph. */
  fit() {
    this.place(LEAST);
  }

  /* Show the top of the graph at a readable size. */
  home() {
    this.place(0.9);
  }

  place(least) {
    if (!this.picture) return;
    this.settle();
    const { width, height } = this.size();
    const scale = Math.min(1, Math.max(least, Math.min(width / this.picture.width, height / this.picture.height)));
    const first = this.picture.items.reduce((a, b) => (b.y < a.y ? b : a), this.picture.items[0]);
    const wide = this.picture.width * scale > width;
    const x = wide && first ? width / 2 - first.x * scale : (width - this.picture.width * scale) / 2;
    this.view = { x, y: Math.max(0, (height - this.picture.height * scale) / 2), scale };
    this.apply();
  }
}
