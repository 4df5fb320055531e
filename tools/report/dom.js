/* Elements and numbers. Strings never become markup: text of the model stays text. */

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/* Return an HTML element; functions among the attributes become listeners. */
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/* Return an SVG element. */
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/* Return text of the model in its own writing direction. */
function named(text, tag = "span") {
  return el(tag, { class: "name", dir: "auto" }, text);
}

function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "inf" ? "∞" : value === "-inf" ? "−∞" : "NaN";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace(/-/g, "−");
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; count >= 1000 && unit < units.length - 1; unit++) count /= 1000;
  return `${unit ? count.toFixed(count < 10 ? 2 : count < 100 ? 1 : 0) : count} ${units[unit]}`;
}

function duration(seconds) {
  return seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(seconds * 1e3).toFixed(seconds < 0.01 ? 2 : 0)} ms`;
}

function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

const STATUSES = {
  folded: "folded away",
  layer: "absorbed affines",
  partial: "partly folded",
  kept: "affine kept",
  merged: "merged",
  dead: "unused",
  gone: "removed",
  new: "new",
  inside: "changed inside",
  same: "unchanged",
};

function badge(status) {
  return el("span", { class: `badge s-${status}` }, STATUSES[status] ?? status);
}
