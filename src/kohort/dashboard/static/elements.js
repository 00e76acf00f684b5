// Elements and texts that all pages use.

import { clock } from "./charts.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const MARKS = { OK: "✓", WARN: "▲", STALL: "■", STOP: "●", ERR: "✕", UNREAD: "?" };

// An element. Properties are set as such; data-, aria- and the like as attributes; null leaves out.
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A text of the cluster, with characters that have no shape, or turn the direction of what follows, as escapes.
export function visible(text) {
  return String(text).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function rate(value) {
  return value === null || value === undefined ? "–" : `${value < 10 ? tenth.format(value) : whole.format(value)}/s`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0 s";
  if (ms < 10_000) return `${tenth.format(Math.max(0.1, ms / 1000))} s`;
  const units = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
  const at = units.findIndex(([, size]) => ms >= size);
  const [name, size] = units[at], rest = units[at + 1];
  const more = rest ? Math.floor((ms % size) / rest[1]) : 0;
  return `${Math.floor(ms / size)} ${name}${more ? ` ${more} ${rest[0]}` : ""}`;
}

// A time lag that is an upper bound has a sign before it.
export function timeLag(ms, isExact) {
  return ms === null || ms === undefined ? "–" : `${isExact || ms === 0 ? "" : "≤ "}${duration(ms)}`;
}

export function badge(status) {
  return element("span", { className: `badge ${status}` }, `${MARKS[status] ?? ""} ${status}`);
}

// A time; the number itself where there is no such date, since producers choose the timestamps of records.
export function moment(ms) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return element("span", {}, `${ms} ms`);
  return element("time", { dateTime: at.toISOString(), title: at.toISOString() }, clock(ms));
}

export function link(page, name, properties = {}) {
  return element("a", { href: `#/${page}/${encodeURIComponent(name)}`, ...properties }, visible(name));
}

export function note(kind, text, lines = []) {
  const list = lines.length ? element("ul", {}, ...lines.map((line) => element("li", {}, visible(line)))) : null;
  return element("div", { className: `note ${kind}` }, text, list);
}

export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", { className: "facts" }, ...known.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value instanceof Node ? value : visible(value)))));
}

// A table. `columns`: [{name, cell, className, sort}], `cell` makes the content of a row's cell.
export function table(columns, rows, { sorted, onSort, empty = "nothing" } = {}) {
  if (!rows.length) return element("p", { className: "muted" }, empty);
  const head = columns.map((column) => {
    const isSorted = sorted && sorted.by === column.name;
    const text = column.sort && onSort
      ? element("button", { type: "button", onclick: () => onSort(column.name), "data-key": `sort ${column.name}` }, column.name)
      : column.name;
    return element("th", {
      scope: "col", role: "columnheader", className: column.className ?? "",
      "aria-sort": isSorted ? (sorted.down ? "descending" : "ascending") : null,
    }, text);
  });
  const body = rows.map((row) => element("tr", { role: "row" }, ...columns.map((column) => {
    const content = column.cell(row), isHead = /\bhead\b/.test(column.className ?? "");
    const isEmpty = content === "" || content === "–" || content === null;
    return element("td", {
      role: "cell", className: `${column.className ?? ""} ${isEmpty ? "empty" : ""}`.trim(),
      "data-label": isHead || column.bare ? null : column.name,
    }, content ?? "");
  })));
  return element("div", { className: "scroll" }, element("table", { className: "cards", role: "table" },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...head)), element("tbody", { role: "rowgroup" }, ...body)));
}

// Numbers as ranges: 0–3, 7.
export function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}
