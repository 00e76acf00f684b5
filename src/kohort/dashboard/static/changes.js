// Changes of a group: a form, a preview of what it would do, and a second step that does it.

import { count, element, note, table, visible } from "./elements.js";

const CHANGES = [["reset-offsets", "Reset offsets"], ["delete-offsets", "Delete offsets"], ["delete", "Delete the group"]];
const GOALS = [
  ["earliest", "to the first record"], ["latest", "to the end"], ["current", "to where it is, within bounds"],
  ["offset", "to an offset", "Offset"], ["shift", "by a number of records", "Records, negative for back"],
  ["datetime", "to a time", "Time, as 2026-01-31T12:00:00 (UTC)"], ["duration", "to this long ago", "Duration, as PT30M or P1D"],
];
const columns = [
  { name: "Topic", className: "wide head", cell: (row) => visible(row.topic) },
  { name: "Partition", className: "number", cell: (row) => count(row.partition) },
  { name: "Committed", className: "number", cell: (row) => count(row.committed) },
];
const resetColumns = [
  ...columns,
  { name: "Requested", className: "number", cell: (row) => count(row.requested) },
  { name: "New", className: "number", cell: (row) => count(row.new) },
  { name: "Note", className: "wide", cell: (row) => visible(row.note ?? "") },
];
const groupColumns = [
  { name: "Group", className: "wide head", cell: (row) => visible(row.group) },
  { name: "State", cell: (row) => visible(row.state) },
  { name: "Members", className: "number", cell: (row) => count(row.members) },
  { name: "Offsets", className: "number", cell: (row) => count(row.offsets) },
];
const doneColumn = { name: "Done", cell: (row) => (row.done === null ? "not known" : row.done ? "yes" : "no") };

function columnsOf(change) {
  return { "reset-offsets": resetColumns, "delete-offsets": columns, delete: groupColumns }[change];
}

function choice(id, name, options, onchange) {
  const select = element("select", { id, onchange }, ...options.map(([value, text]) => element("option", { value }, text)));
  return [select, element("p", {}, element("label", { htmlFor: id }, name), select)];
}

// A number beyond 2^53 would be rounded without a word.
function wholeNumber(text) {
  const number = /^[+-]?\d+$/.test(text) ? Number(text) : NaN;
  if (!Number.isSafeInteger(number)) throw new Error(`give a whole number of at most ${Number.MAX_SAFE_INTEGER}, not ${text}: beyond that use kohort groups`);
  return number;
}

function errorNotes(errors, text = "Not changed:") {
  return errors.length ? [note("fair", text, errors)] : [];
}

// The section of a group's page. `send` posts a body to a path, and returns the answer.
export function changesOf(group, send) {
  const result = element("div", { role: "status" });
  const [change, changeRow] = choice("change-kind", "Change", CHANGES, update);
  const [goal, goalRow] = choice("change-goal", "Where to", GOALS, update);
  const topics = element("input", { id: "change-topics", autocomplete: "off", spellcheck: false });
  const topicsLabel = element("label", { htmlFor: "change-topics" });
  const value = element("input", { id: "change-value", autocomplete: "off", spellcheck: false });
  const valueLabel = element("label", { htmlFor: "change-value" });
  const topicsRow = element("p", {}, topicsLabel, topics), valueRow = element("p", {}, valueLabel, value);
  const preview = element("button", { type: "submit" }, "Preview"), fields = [change, goal, topics, value];

  function update() {
    const isReset = change.value === "reset-offsets", name = GOALS.find(([kind]) => kind === goal.value)[2];
    goalRow.hidden = !isReset;
    topicsRow.hidden = change.value === "delete";
    topics.required = change.value === "delete-offsets";
    topicsLabel.textContent = `Topics, as orders or orders:0,1 with spaces between${isReset ? "; none: all with offsets" : ""}`;
    valueRow.hidden = !(isReset && name);
    value.required = !valueRow.hidden;
    valueLabel.textContent = name ?? "";
    result.replaceChildren();
  }

  function asked() {
    const body = { change: change.value, group };
    if (change.value !== "delete") body.topics = topics.value.split(/\s+/).filter(Boolean);
    if (change.value !== "reset-offsets") return body;
    body.goal = goal.value;
    if (!valueRow.hidden) body.value = ["offset", "shift"].includes(goal.value) ? wholeNumber(value.value.trim()) : value.value.trim();
    return body;
  }

  // Shows what a step gives; while it is under way nothing of the section can be used.
  async function step(what) {
    const used = [preview, ...fields, ...result.querySelectorAll("button")];
    for (const control of used) control.disabled = true;
    try {
      result.replaceChildren(...await what());
    } catch (error) {
      result.replaceChildren(note("bad", visible(error.message)));
    } finally {
      for (const control of used) control.disabled = false;
    }
    result.querySelector("h3")?.focus();
  }

  function shown() {
    return step(async () => {
      const body = asked(), found = await send("/api/preview", body), name = CHANGES.find(([kind]) => kind === body.change)[1];
      const what = body.change === "delete" ? "" : ` (${count(found.rows.length)})`;
      const confirm = element("button", { type: "button", onclick: () => confirmed(body.change, found.token) }, `${name}: do it`);
      const cancel = element("button", { type: "button", onclick: () => { result.replaceChildren(); preview.focus(); } }, "Cancel");
      return [
        element("h3", { tabIndex: -1 }, `Preview: ${name}${what}`), ...errorNotes(found.errors),
        table(columnsOf(body.change), found.rows, { empty: "nothing to change" }),
        ...(found.token ? [element("p", { className: "bar" }, confirm, cancel)] : []),
      ];
    });
  }

  function confirmed(kind, token) {
    return step(async () => {
      const made = await send("/api/change", { token });
      const isUnknown = made.rows.some((row) => row.done === null);
      const text = isUnknown ? "It may have been done: preview it again to see" : made.errors.length ? "Some of it was not done" : "Done";
      return [element("h3", { tabIndex: -1 }, text), ...errorNotes(made.errors, isUnknown ? "Outcome:" : "Not changed:"), table([...columnsOf(kind), doneColumn], made.rows)];
    });
  }

  update();
  const form = element("form", { className: "change", onsubmit: (event) => {
    event.preventDefault();
    shown();
  } }, changeRow, goalRow, valueRow, topicsRow, element("p", {}, preview));
  return [element("h2", {}, "Change this group"), form, result];
}
