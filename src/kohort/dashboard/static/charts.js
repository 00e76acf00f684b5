// Charts as SVG: sparklines and lines over time. No style attributes, which the page's policy forbids.

const SVG = "http://www.w3.org/2000/svg";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function shape(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// The parts of a line between gaps, as lists of [x, y].
function runs(values, x, y) {
  const found = [];
  let run = [];
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      if (run.length) found.push(run);
      run = [];
    } else {
      run.push([x(index), y(value)]);
    }
  });
  if (run.length) found.push(run);
  return found;
}

const path = (run) => "M" + run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

function draw(run, base, className, filled) {
  const points = run.length > 1 ? run : [[run[0][0] - 1, run[0][1]], [run[0][0] + 1, run[0][1]]];
  const line = shape("path", { d: path(points), class: className });
  if (!filled) return [line];
  const area = `${path(points)}L${points.at(-1)[0].toFixed(1)} ${base}L${points[0][0].toFixed(1)} ${base}Z`;
  return [shape("path", { d: area, class: "area" }), line];
}

export function sparkline(values, name) {
  const width = 120, height = 26, known = values.filter((value) => value !== null);
  if (!known.length) return document.createTextNode("");
  const most = Math.max(1, ...known), step = (width - 2) / Math.max(1, values.length - 1);
  const y = (value) => height - 1 - (value / most) * (height - 4);
  const label = `${name} over the last reads: now ${whole.format(known.at(-1))}, at most ${whole.format(Math.max(...known))}`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  svg.append(shape("title", {}, label));
  for (const run of runs(values, (index) => 1 + index * step, y)) svg.append(...draw(run, height, "line", true));
  return svg;
}

// Lines over time. `series`: [{name, values}]; `format` writes a value.
export function lineChart(title, times, series, format = (value) => short.format(value)) {
  const width = window.innerWidth < 700 ? 350 : 560, height = 170, left = 62, bottom = 22, top = 10, right = 8;
  const known = series.flatMap((line) => line.values.filter((value) => value !== null));
  const most = Math.max(1, ...known), begin = times[0] ?? 0, span = Math.max(1, (times.at(-1) ?? 1) - begin);
  const x = (index) => left + ((times[index] - begin) / span) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  const last = known.length ? series.map((line) => `${line.name} ${format(lastKnown(line.values))}`).join(", ") : "nothing is known";
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `${title}: ${last}` });
  for (const part of [0, 0.5, 1]) {
    const at = y(most * part);
    svg.append(shape("line", { x1: left, x2: width - right, y1: at, y2: at, class: "grid" }));
    svg.append(shape("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, format(most * part)));
  }
  if (times.length) {
    svg.append(shape("text", { x: left, y: height - 6 }, clock(begin)));
    svg.append(shape("text", { x: width - right, y: height - 6, "text-anchor": "end" }, clock(times.at(-1))));
  }
  series.forEach((line, number) => {
    for (const run of runs(line.values, x, y)) svg.append(...draw(run, height - bottom, `line s${number}`, series.length === 1));
  });
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  caption.append(Object.assign(document.createElement("strong"), { textContent: title }));
  if (series.length > 1) {
    series.forEach((line, number) => {
      caption.append(Object.assign(document.createElement("span"), { className: `key s${number}`, textContent: line.name }));
    });
  }
  figure.append(caption, svg);
  return figure;
}

function lastKnown(values) {
  return values.findLast((value) => value !== null) ?? 0;
}

export function clock(ms) {
  const at = new Date(ms), two = (number) => String(number).padStart(2, "0");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return new Date().toDateString() === at.toDateString() ? time : `${day} ${time}`;
}
