/* The page around the graphs: summary, affines, passes, alignment. */

function figure(term, value, note) {
  return el("div", { class: "figure" }, el("dt", {}, term), el("dd", {}, el("b", {}, value), note ? el("span", {}, note) : null));
}

function change(before, after) {
  if (!before || before === after) return "unchanged";
  return `${after > before ? "+" : "−"}${Math.abs((100 * (after - before)) / before).toFixed(1)} %`;
}

function showSummary({ irc, model, summary, passes }) {
  byId("model-name").textContent = model.name;
  document.title = `${model.name} – irc report`;
  const opsets = Object.entries(model.opsets).map(([domain, version]) => `${domain} ${version}`);
  byId("model-facts").textContent = [model.producer, `IR version ${model.ir_version}`, `opset ${opsets.join(", ")}`].filter(Boolean).join(" · ");
  byId("made-by").textContent = `Made by irc ${irc}. Graphs are laid out by dagre 3.1.3 (MIT). This page loads nothing.`;
  const [before, after] = summary.operators, [was, is] = summary.bytes;
  const compiled = summary.affines !== null;
  const counts = Object.entries(summary.affines ?? {});
  const total = counts.reduce((sum, [, count]) => sum + count, 0);
  const folded = summary.affines?.folded ?? 0;
  const others = counts.filter(([status]) => status !== "folded").map(([status, count]) => `${count} ${status.replace(/_/g, " ")}`);
  byId("figures").append(
    figure("Operators", `${before.toLocaleString("en")} → ${after.toLocaleString("en")}`, change(before, after)),
    ...(compiled ? [figure("Affines folded", total ? `${folded} of ${total}` : "none", others.join(", ") || (total ? "all of them" : "the source has none"))] : []),
    ...(summary.held_back ? [figure("Folds held back", summary.held_back.toLocaleString("en"), "by initializers that callers may override; --freeze-initializers makes them constants")] : []),
    figure("Size", `${bytes(was)} → ${bytes(is)}`, change(was, is)),
    ...(compiled ? [figure("Passes", `${passes.filter(({ changed }) => changed).length} of ${passes.length} changed something`, passes.map(({ name }) => name).join(", "))] : []),
    ...(summary.seconds === null ? [] : [figure("Time", duration(summary.seconds), "reading, compiling and recording for this page")]),
  );
  for (const id of compiled ? [] : ["affines", "passes"]) {
    for (const item of [byId(id), document.querySelector(`nav a[href="#${id}"]`)]) item.hidden = true;
  }
  byId("warnings").append(...summary.warnings.map((warning) => el("li", { dir: "auto" }, warning)));
  byId("warnings").hidden = !summary.warnings.length;
}

/* Group affines by the module of the torch model around them: [heading, affines] in the order of the model. */
function blocks(shown) {
  const found = new Map();
  for (const item of shown) {
    const [{ module: path }] = item;
    const block = path === null ? "" : path.split(".").slice(0, -1).join(".") || "(model)";
    found.set(block, [...(found.get(block) ?? []), item]);
  }
  return [...found].map(([block, items]) => [block || (found.size > 1 ? "(no module known)" : null), items]);
}

/* Show the table of affines; `place` has the position of each in the source, `jump` goes there. */
function showAffines({ affines, layers }, place, jump) {
  const filter = byId("affine-filter");
  const label = ({ status, reason }) => (status === "kept" ? `kept: ${reason}` : status);
  const counts = new Map();
  affines.forEach((affine) => counts.set(label(affine), (counts.get(label(affine)) ?? 0) + 1));
  [...counts].sort().forEach(([status, count]) => filter.append(el("option", { value: status }, `${status.replace(/_/g, " ")} (${count})`)));
  const draw = () => {
    const shown = affines.map((affine, i) => [affine, i]).filter(([affine]) => !filter.value || label(affine) === filter.value);
    const rows = ([affine, i]) => {
      const where = affine.layers.length ? affine.layers.flatMap((layer, at) => [at ? ", " : "", named(layers[layer].name)]) : [affine.reason ? el("code", {}, affine.reason) : "", " ", affine.detail];
      const title = affine.module || affine.name;
      const open = place.has(i) ? el("button", { type: "button", class: "link", click: () => jump(0, ...place.get(i)) }, named(title)) : named(title);
      return el("tr", {}, el("td", {}, open), el("td", {}, affine.op), el("td", { class: "number" }, affine.channels ?? ""), el("td", {}, badge(affine.status)), el("td", { dir: "auto" }, where));
    };
    byId("affine-rows").replaceChildren(...blocks(shown).flatMap(([block, inside]) => [block === null ? null : el("tr", { class: "block" }, el("th", { scope: "rowgroup", colspan: 5 }, named(block))), ...inside.map(rows)]).filter(Boolean));
    byId("affine-count").textContent = `${shown.length} of ${plural(affines.length, "affine")}`;
  };
  filter.addEventListener("change", draw);
  draw();
}

function showPasses({ passes }) {
  const total = passes.reduce((sum, { seconds }) => sum + (seconds ?? 0), 0);
  const timed = passes.some(({ seconds }) => seconds !== null);
  byId("passes-total").textContent = timed ? `${duration(total)} in all` : "";
  let start = 0;
  byId("timeline").append(...passes.map((pass) => {
    const bar = !timed ? el("span") : svg("svg", { class: "lane", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "track", width: 100, height: 10 }),
      total ? svg("rect", { class: "bar", x: (100 * start) / total, width: Math.max(0.4, (100 * pass.seconds) / total), height: 10 }) : null);
    start += pass.seconds ?? 0;
    const changes = pass.changed ? [el("ins", {}, `+${pass.added}`), " ", el("del", {}, `−${pass.removed}`), " lines"] : ["unchanged"];
    const details = el("details", { class: "pass" }, el("summary", {}, el("span", { class: "pass-name" }, pass.name), bar,
      el("span", { class: "number" }, pass.seconds === null ? "" : duration(pass.seconds)), el("span", { class: "number" }, plural(pass.operators, "operator")), el("span", { class: "number" }, ...changes)));
    details.addEventListener("toggle", () => details.open && details.children.length === 1 && details.append(difference(pass)));
    return details;
  }));
  if (!passes.length) byId("timeline").append(el("p", { class: "quiet" }, "No passes were run."));
}

/* Return the unified diff of a pass. */
function difference({ lines, left_out: rest, changed, name }) {
  const note = rest === null ? "The texts are too large for a comparison line by line." : rest ? `${plural(rest, "more line")} not shown.` : !lines.length ? (changed ? "The IR text is the same." : "This pass changed nothing.") : null;
  const kinds = { "+": "added", "-": "removed", "@": "hunk" };
  const text = el("pre", { class: "diff", tabindex: 0, role: "region", "aria-label": `Changes by ${name}`, dir: "ltr" },
    lines.map((line) => el("span", { class: kinds[line[0]] ?? "same" }, `${line}\n`)));
  return el("div", {}, lines.length ? text : null, note ? el("p", { class: "quiet" }, note) : null);
}

function showAlignment(alignment, jump) {
  if (!alignment) return;
  for (const item of [byId("alignment"), document.querySelector('nav a[href="#alignment"]')]) item.hidden = false;
  const draw = () => byId("alignment-plot").replaceChildren(alignmentPlot(alignment, byId("measure").value, jump));
  byId("measure").addEventListener("change", draw);
  byId("alignment-rows").append(...alignment.map((row) => el("tr", { class: exceeds(row) ? "over" : null }, el("td", {}, named(row.tensor)), ...["max_abs", "max_rel", "sqnr", "bound"].map((key) => el("td", { class: "number" }, number(row[key]))))));
  const over = alignment.filter(exceeds).length;
  const bounded = alignment.some(({ bound }) => bound !== null);
  byId("alignment-summary").textContent = `${plural(alignment.length, "tensor")}${bounded ? over ? `, ${over} above the bound on the absolute error` : ", all within the bound on the absolute error" : ""}`;
  draw();
}

function exceeds({ max_abs: error, bound }) {
  return typeof error === "string" || (typeof bound === "number" && typeof error === "number" && error > bound);
}

/* Plot one point per tensor, in the order of the model, with errors on a logarithmic scale. */
function alignmentPlot(rows, key, jump) {
  const wide = 1000, tall = 300, left = 66, low = 240, equal = 266, top = 14;
  const logarithmic = key !== "sqnr";
  const level = (value) => (typeof value !== "number" || (logarithmic && value <= 0) ? null : logarithmic ? Math.log10(value) : value);
  const bounds = rows.map(({ bound }) => (key === "max_abs" ? level(bound) : null));
  const levels = rows.map((row) => level(row[key]));
  const known = [...levels, ...bounds].filter((value) => value !== null);
  let floor = known.length ? Math.floor(Math.min(...known)) : 0, ceiling = known.length ? Math.ceil(Math.max(...known)) : 1;
  if (floor === ceiling) ceiling += 1;
  const x = (i) => left + ((i + 0.5) * (wide - left - 12)) / Math.max(rows.length, 1);
  const y = (value) => low - ((value - floor) / (ceiling - floor)) * (low - top);
  const plot = svg("svg", { class: "plot", viewBox: `0 0 ${wide} ${tall}`, role: "group", "aria-label": `Error of ${plural(rows.length, "tensor")} in the order of the model${logarithmic ? ", logarithmic" : ""}` });
  const step = Math.max(1, Math.ceil((ceiling - floor) / 7));
  for (let at = floor; at <= ceiling; at += step) {
    const label = logarithmic ? svg("text", { x: left - 10, y: y(at) + 4, "text-anchor": "end" }, "10", svg("tspan", { dy: -5, class: "power" }, String(at).replace("-", "−"))) : svg("text", { x: left - 10, y: y(at) + 4, "text-anchor": "end" }, String(at));
    plot.append(svg("line", { class: "grid", x1: left, x2: wide - 12, y1: y(at), y2: y(at) }), label);
  }
  const line = bounds.map((bound, i) => (bound === null ? null : `${x(i).toFixed(1)},${y(bound).toFixed(1)}`)).filter(Boolean);
  if (line.length > 1) plot.append(svg("polyline", { class: "bound", points: line.join(" ") }, svg("title", {}, "bound")));
  rows.forEach((row, i) => {
    const exact = row[key] === 0, broken = typeof row[key] === "string" && key !== "sqnr", over = exceeds(row);
    if (levels[i] === null && !exact && !broken && typeof row[key] !== "string") return;
    const text = `${row.tensor}: ${exact ? "exactly equal" : number(row[key])}`;
    const at = { "aria-label": text, role: "button", tabindex: i ? -1 : 0, class: over ? "point over" : exact ? "point exact" : "point", click: () => jump(row.tensor), keydown: (event) => walk(event, row) };
    const height = exact ? equal : broken || levels[i] === null ? top : y(levels[i]);
    plot.append(over ? svg("path", { ...at, d: `M${x(i)},${height - 6}l6,11h-12z` }, svg("title", {}, text)) : svg("circle", { ...at, cx: x(i), cy: height, r: rows.length > 200 ? 2.5 : 4.5 }, svg("title", {}, text)));
  });
  const walk = (event, row) => {
    const points = [...plot.querySelectorAll(".point")];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) points[points.indexOf(event.currentTarget) + step]?.focus();
    else if (event.key === "Enter" || event.key === " ") jump(row.tensor);
    else return;
    event.preventDefault();
  };
  plot.append(svg("text", { class: "axis", x: left, y: tall - 6 }, "first tensor"), svg("text", { class: "axis", x: wide - 12, y: tall - 6, "text-anchor": "end" }, "last tensor"));
  if (rows.some((row) => row[key] === 0)) plot.append(svg("text", { class: "axis", x: left - 10, y: equal + 4, "text-anchor": "end" }, "equal"));
  return plot;
}
