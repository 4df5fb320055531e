/* Small charts of numbers per channel. */

const CHART_HEIGHT = 100;

/* Draw bars of [low, high] for every chart in `series`, on one scale. */
function bars(series, from, to, zero) {
  const span = to - from || 1;
  const y = (value) => CHART_HEIGHT - ((value - from) / span) * CHART_HEIGHT;
  const count = Math.max(1, ...series.map(({ chart }) => chart.low.length));
  const picture = svg("svg", { viewBox: `0 0 ${count} ${CHART_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  series.forEach(({ chart, kind }, place) => {
    const width = 0.84 / series.length;
    chart.low.forEach((first, i) => {
      const last = chart.high ? chart.high[i] : zero;
      const low = Math.min(first ?? last, last ?? first), high = Math.max(first ?? last, last ?? first);
      if (first === null && (last === null || !chart.high)) return;
      const height = Math.max(y(low) - y(high), 1);
      const share = chart.channels > chart.low.length ? `around channel ${Math.round((i * chart.channels) / chart.low.length)}` : `channel ${i}`;
      const value = chart.high ? `${number(first)} to ${number(chart.high[i])}` : number(first);
      picture.append(svg("rect", { class: kind, x: i + 0.08 + place * width, y: y(high), width, height }, svg("title", {}, `${share}: ${value}`)));
    });
  });
  if (from < 0 && to > 0) picture.append(svg("line", { class: "zero", x1: 0, x2: count, y1: y(0), y2: y(0) }));
  return picture;
}

function extent(chart) {
  return chart.min === null ? "no finite number" : chart.min === chart.max ? `all ${number(chart.min)}` : `${number(chart.min)} to ${number(chart.max)}`;
}

/* Return a figure of one number per channel. */
function channelChart(title, chart, baseline = 0) {
  const from = Math.min(chart.min ?? 0, baseline), to = Math.max(chart.max ?? 0, baseline);
  const note = chart.nonfinite ? `, ${chart.nonfinite} not finite` : "";
  const label = `${title}: ${plural(chart.channels, "channel")}, ${extent(chart)}${note}`;
  const caption = el("figcaption", {}, el("b", {}, title), el("span", {}, `${extent(chart)}${note}`));
  if (chart.channels <= 1) return el("figure", { class: "chart", "aria-label": label }, caption);
  return el("figure", { class: "chart", role: "img", "aria-label": label }, caption, bars([{ chart, kind: "bar" }], from, to, baseline));
}

/* Return a figure of the range per channel before and after, on one scale. */
function rangeChart(title, before, after) {
  const series = [{ chart: before, kind: "was" }, { chart: after, kind: "bar" }].filter(({ chart }) => chart);
  if (!series.length) return el("p", { class: "quiet" }, "The weights are not constants of the main graph.");
  const ends = series.flatMap(({ chart }) => [chart.min ?? 0, chart.max ?? 0]);
  const words = [before && `before ${extent(before)}`, after && `after ${extent(after)}`].filter(Boolean);
  return el("figure", { class: "chart tall", role: "img", "aria-label": `${title}: ${words.join("; ")}` },
    el("figcaption", {}, el("b", {}, title),
      before && el("span", { class: "key was" }, `before ${extent(before)}`), after && el("span", { class: "key bar" }, `after ${extent(after)}`)),
    bars(series, Math.min(0, ...ends), Math.max(0, ...ends), 0));
}
