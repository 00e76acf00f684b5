// The pages: groups, a group, topics, a topic with its records, regions, a region, coordinators.
// A page has `path`, which it asks for; `show`, which draws the answer; and `isLive` if it is asked for after every read.

import { changesOf } from "./changes.js";
import { lineChart, sparkline } from "./charts.js";
import { badge, count, duration, element, facts, link, moment, note, ranges, rate, table, timeLag, visible } from "./elements.js";

const STATUSES = ["ERR", "STOP", "STALL", "WARN", "UNREAD", "OK"];
const WORST_LINES = 6;
const HOUR_MS = 3_600_000, PAST_MS = 60_000;
const PAST = [["6 hours", 6 * HOUR_MS], ["1 day", 24 * HOUR_MS], ["7 days", 168 * HOUR_MS], ["30 days", 720 * HOUR_MS], ["400 days", 9600 * HOUR_MS]];

// Where a page says that its answer could not be had; null takes it away.
function failures(place) {
  return (error) => place.replaceChildren(...(error ? [note("bad", visible(error.message))] : []));
}

function search(label, onInput, value) {
  return element("input", { type: "search", placeholder: `${label}  ( / )`, "aria-label": label, value, oninput: (event) => onInput(event.target.value) });
}

function sortedBy(rows, columns, sorted) {
  const { sort } = columns.find((column) => column.name === sorted.by);
  const order = (a, b) => {
    const [x, y] = [sort(a), sort(b)];
    if (typeof x === "string") return sorted.down ? y.localeCompare(x) : x.localeCompare(y);
    return sorted.down ? y - x : x - y;
  };
  return [...rows].sort(order);
}

// What the user chose on lists stays when a page is left and opened again.
const chosen = { groups: { text: "", status: "", by: "Status", down: false }, topics: { text: "", internal: false }, past: 24 * HOUR_MS };

const groupColumns = [
  { name: "Group", className: "wide head", sort: (row) => row.group, cell: (row) => link("group", row.group, { "data-row": "", "data-key": row.group }) },
  { name: "Status", bare: true, sort: (row) => STATUSES.indexOf(row.status) * 1e15 - (row.lag ?? 0), cell: groupStatus },
  { name: "Lag", className: "number", sort: (row) => row.lag ?? -1, cell: (row) => count(row.lag) },
  { name: "Time lag", className: "number", sort: (row) => row.time_lag_ms ?? -1, cell: (row) => timeLag(row.time_lag_ms, row.exact) },
  { name: "Lag over time", bare: true, cell: (row) => sparkline(row.lags, `lag of ${row.group}`) },
  { name: "Read", className: "number", sort: (row) => row.consumed_per_s ?? -1, cell: (row) => rate(row.consumed_per_s) },
  { name: "Written", className: "number", sort: (row) => row.written_per_s ?? -1, cell: (row) => rate(row.written_per_s) },
  { name: "Members", className: "number", sort: (row) => row.members ?? -1, cell: (row) => count(row.members) },
  { name: "State", sort: (row) => row.state ?? "", cell: (row) => row.state ?? "" },
  { name: "Type", sort: (row) => row.type ?? "", cell: (row) => row.type ?? "" },
];

function groupStatus(row) {
  const why = row.error ?? row.causes.join(", ");
  return element("span", {}, badge(row.status), why ? element("span", { className: "cause" }, visible(why)) : null);
}

function groups(main) {
  const choice = chosen.groups, place = element("div"), filters = element("span", { className: "bar" }), failed = element("div");
  let last = null;
  const draw = () => last && drawGroups();
  const input = search("Filter by group, topic or cause", (text) => { choice.text = text; draw(); }, choice.text);
  main.append(element("h1", {}, "Groups"), element("div", { className: "bar" }, input, filters), failed, place);

  function drawGroups() {
    const all = last.overview.groups, words = choice.text.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = Object.fromEntries(STATUSES.map((status) => [status, all.filter((row) => row.status === status).length]));
    const there = STATUSES.filter((status) => counts[status] || choice.status === status);
    filters.replaceChildren(...there.map((status) => element("button", {
      type: "button", "aria-pressed": String(choice.status === status), "data-key": `status ${status}`,
      onclick: () => { choice.status = choice.status === status ? "" : status; redraw(); },
    }, `${status} ${counts[status]}`)));
    const text = (row) => [row.group, row.state, row.type, row.error, ...(row.causes ?? []), ...(row.topics ?? [])].join(" ").toLowerCase();
    const rows = all.filter((row) => (!choice.status || row.status === choice.status) && words.every((word) => text(row).includes(word)));
    place.replaceChildren(table(groupColumns, sortedBy(rows, groupColumns, choice), {
      sorted: choice, onSort: sortBy, empty: all.length ? "no group fits the filter" : last.cluster.read_at_ms === null ? "" : "the cluster has no groups",
    }));
  }
  function redraw() {
    const key = document.activeElement?.dataset?.key;
    draw();
    if (key) main.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
  }
  function sortBy(name) {
    Object.assign(choice, choice.by === name ? { down: !choice.down } : { by: name, down: /^(Lag|Time lag|Read|Written|Members)$/.test(name) });
    redraw();
  }
  return { path: "/api/overview", isLive: true, show: (body) => { last = body; draw(); }, failed: failures(failed) };
}

const partitionColumns = [
  { name: "Partition", className: "head", cell: (row) => element("span", {}, link("topic", row.topic, { "data-key": `${row.topic} ${row.partition}` }), ` ${row.partition}`) },
  { name: "Status", bare: true, cell: (row) => groupStatus({ ...row, causes: row.cause ? [row.cause] : [] }) },
  { name: "Lag", className: "number", cell: (row) => count(row.lag) },
  { name: "Time lag", className: "number", cell: (row) => timeLag(row.time_lag_ms, row.exact) },
  { name: "Lag over time", bare: true, cell: (row) => sparkline(row.lags, `lag of ${row.topic} ${row.partition}`) },
  { name: "Committed", className: "number", cell: (row) => count(row.committed) },
  { name: "End", className: "number", cell: (row) => count(row.log_end) },
  { name: "Lost", className: "number", cell: (row) => (row.lost ? count(row.lost) : "") },
  { name: "Read", className: "number", cell: (row) => rate(row.consumed_per_s) },
  { name: "Written", className: "number", cell: (row) => rate(row.written_per_s) },
  { name: "Catch up", className: "number", cell: (row) => (row.catch_up_s === null ? "–" : duration(row.catch_up_s * 1000)) },
  { name: "Member", className: "wide", cell: (row) => (row.member === null ? "" : visible(row.member)) },
];

const memberColumns = [
  { name: "Member", className: "wide head", cell: (row) => element("span", { title: visible(row.member_id) }, visible(row.client_id || row.member_id)) },
  { name: "Host", cell: (row) => visible(row.host) },
  { name: "Instance", cell: (row) => (row.instance ? visible(row.instance) : "") },
  { name: "Partitions", className: "number", cell: (row) => count(row.partitions) },
  { name: "Lag", className: "number", cell: (row) => count(row.lag) },
  { name: "Owns", className: "wide", cell: (row) => visible(Object.entries(row.owns).map(([topic, numbers]) => `${topic} ${ranges(numbers)}`).join("; ")) || "nothing" },
];

let pastRequest = new AbortController(); // one at a time: a slow disk must not take all connections that a browser has

// The lag of hours and days, if the dashboard keeps a history in a file. Its rows are minutes, so it is asked for as often.
function pastOf(name, get) {
  const place = element("section", { hidden: true }), charts = element("div", { className: "charts", "aria-live": "polite" });
  const select = element("select", { "aria-label": "how far to look back" },
    ...PAST.map(([text, ms]) => element("option", { value: String(ms), selected: ms === chosen.past }, text)));
  let askedAt = 0, asked = 0;
  async function refresh() {
    if (Date.now() - askedAt < PAST_MS) return;
    askedAt = Date.now();
    const number = ++asked;
    pastRequest.abort();
    pastRequest = new AbortController();
    try {
      const found = await get(`/api/past?name=${encodeURIComponent(name)}&last_ms=${chosen.past}`, pastRequest.signal);
      if (number !== asked) return;
      place.hidden = !found.is_kept;
      const times = found.times_ms.map((at, index) => at ?? found.times_ms[index - 1]); // a gap
      charts.replaceChildren(
        lineChart("Lag", times, [{ name: "lag", values: found.lags }]),
        lineChart("Time lag", times, [{ name: "time lag", values: found.time_lags_ms }], duration),
      );
    } catch (error) {
      if (number !== asked || error.name === "AbortError") return;
      place.hidden = false;
      charts.replaceChildren(note("bad", visible(error.message)));
    }
  }
  select.addEventListener("change", () => {
    chosen.past = Number(select.value);
    askedAt = 0;
    refresh();
  });
  place.append(element("h2", {}, "History"), element("div", { className: "bar" }, element("label", {}, "Look back", select)), charts);
  return { place, refresh };
}

function group(main, name, get, send) {
  const head = element("div"), body = element("div"), failed = element("div"), past = pastOf(name, get), changes = element("section");
  main.append(head, failed, body, past.place, changes);
  get("/api/session").then((session) => session.changes && changes.replaceChildren(...changesOf(name, send)), () => {});
  function show({ group: found }) {
    past.refresh();
    const members = found.members === null ? "unknown" : count(found.members);
    head.replaceChildren(
      element("h1", {}, visible(found.group), badge(found.status)),
      facts([
        ["Lag", count(found.lag)], ["Time lag", timeLag(found.time_lag_ms, found.exact)], ["Read", rate(found.consumed_per_s)],
        ["Written", rate(found.written_per_s)], ["State", found.state], ["Activity", found.activity], ["Type", found.type],
        ["Members", members], ["Assignor", found.assignor], ["Coordinator", found.coordinator], ["Epoch", found.epoch],
      ]),
      ...(found.error ? [note("bad", visible(found.error))] : []),
      ...Object.entries(found.explained ?? {}).map(([cause, meaning]) => note(found.status === "OK" ? "" : "fair", `${cause}: ${meaning}`)),
    );
    const rows = found.partition_rows ?? [];
    const worst = rows.filter((row) => row.lags.some((value) => value > 0)).slice(0, WORST_LINES)
      .sort((a, b) => a.topic.localeCompare(b.topic) || a.partition - b.partition) // a line keeps its colour
      .map((row) => ({ name: visible(`${row.topic} ${row.partition}`), values: row.lags }));
    const charts = [
      lineChart("Lag", found.times_ms, [{ name: "lag", values: found.lags }]),
      lineChart("Time lag", found.times_ms, [{ name: "time lag", values: found.time_lags_ms ?? [] }], duration),
      ...(worst.length > 1 ? [lineChart("Lag of the partitions with the most", found.times_ms, worst)] : []),
    ];
    const timeline = (found.timeline ?? []).map((change) => element("li", {}, moment(change.at_ms), element("strong", {}, change.kind), element("span", {}, visible(change.text))));
    body.replaceChildren(
      element("div", { className: "charts" }, ...charts),
      element("h2", {}, `Partitions (${count(found.partitions ?? 0)})`), table(partitionColumns, rows, { empty: "no offsets" }), leftOut(found.partitions_left_out, "partitions"),
      element("h2", {}, `Members (${members})`), table(memberColumns, found.member_rows ?? [], { empty: "no members" }), leftOut(found.members_left_out, "members"),
      element("h2", {}, "Timeline"),
      timeline.length ? element("ol", { className: "timeline" }, ...timeline) : element("p", { className: "muted" }, "nothing has changed since kohort began to look"),
    );
  }
  return { path: `/api/group?name=${encodeURIComponent(name)}`, isLive: true, show, failed: failures(failed) };
}

function leftOut(number, what) {
  return number ? element("p", { className: "muted" }, `and ${count(number)} more ${what}`) : "";
}

const readers = (row) => element("span", {}, ...row.readers.slice(0, 5).flatMap((reader, index) => [index ? ", " : "", link("group", reader.group, { "data-key": `${row.topic} ${reader.group}` })]),
  row.readers.length > 5 ? ` and ${row.readers.length - 5} more` : "");

const topicColumns = [
  { name: "Topic", className: "wide head", cell: (row) => link("topic", row.topic, { "data-row": "", "data-key": row.topic }) },
  { name: "Partitions", className: "number", cell: (row) => count(row.partitions) },
  { name: "Copies", className: "number", cell: (row) => count(row.replication_factor) },
  { name: "Groups", className: "wide", cell: (row) => (row.readers.length ? readers(row) : "") },
  { name: "Error", cell: (row) => row.error ?? "" },
];

function topics(main) {
  const choice = chosen.topics, place = element("div"), failed = element("div");
  let last = null;
  const draw = () => {
    if (!last) return;
    const words = choice.text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = last.topics.filter((row) => (choice.internal || !row.internal) && words.every((word) => row.topic.toLowerCase().includes(word)));
    place.replaceChildren(table(topicColumns, rows, { empty: "no topics" }));
  };
  const input = search("Filter by topic", (text) => { choice.text = text; draw(); }, choice.text);
  const box = element("input", { type: "checkbox", checked: choice.internal, onchange: (event) => { choice.internal = event.target.checked; draw(); } });
  main.append(element("h1", {}, "Topics"), element("div", { className: "bar" }, input, element("label", {}, box, "Kafka's own too")), failed, place);
  return { path: "/api/topics", isLive: true, show: (body) => { last = body; draw(); }, failed: failures(failed) };
}

const logColumns = [
  { name: "Partition", className: "head", cell: (row) => `${row.partition}` },
  { name: "Start", className: "number", cell: (row) => count(row.log_start) },
  { name: "End", className: "number", cell: (row) => count(row.log_end) },
  { name: "Offsets", className: "number", cell: (row) => (row.log_end === null ? "–" : count(row.log_end - row.log_start)) },
  { name: "Leader", className: "number", cell: (row) => (row.leader < 0 ? "none" : `${row.leader}`) },
  { name: "Replicas", cell: (row) => row.replicas.join(", ") },
  { name: "In sync", cell: (row) => row.isr.join(", ") },
  { name: "Error", className: "wide", cell: (row) => (row.error ? visible(row.error) : "") },
];
const readerColumns = [
  { name: "Group", className: "wide head", cell: (row) => link("group", row.group, { "data-key": row.group }) },
  { name: "Status", bare: true, cell: (row) => badge(row.status) },
  { name: "Lag", className: "number", cell: (row) => count(row.lag) },
];

function topic(main, name, get) {
  const head = element("div"), failed = element("div"), tables = element("div");
  main.append(head, failed, records(name, get), tables);
  head.append(element("h1", {}, visible(name)));
  function show(found) {
    head.replaceChildren(element("h1", {}, visible(name)), facts([["Partitions", count(found.partitions)], ["Copies", count(found.replication_factor)], ["Topic id", found.topic_id]]));
    tables.replaceChildren(
      element("h2", {}, "Groups"), table(readerColumns, found.readers, { empty: "no group reads it" }),
      element("h2", {}, "Partitions"), table(logColumns, found.partition_rows, { empty: "no partitions" }), leftOut(found.partitions_left_out, "partitions"),
    );
  }
  return { path: `/api/topic?name=${encodeURIComponent(name)}`, isLive: true, list: "topics", show, failed: failures(failed) };
}

// The form that asks for records, and the records below it.
function records(name, get) {
  const place = element("div", { "aria-live": "polite" });
  const number = (label, most) => element("input", { type: "number", min: "0", max: most ?? null, placeholder: label, "aria-label": label });
  const partition = number("all"), offset = number("newest"), limit = number("50", "200");
  const contains = element("input", { type: "search", placeholder: "any text", "aria-label": "contains", maxLength: 1000 });
  const button = element("button", { type: "submit" }, "Look at records");
  const labelled = (text, input) => element("label", {}, text, input);
  const form = element("form", { className: "bar" }, labelled("Partition", partition), labelled("From offset", offset), labelled("Contains", contains), labelled("At most", limit), button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    const query = new URLSearchParams({ topic: name });
    for (const [key, input] of Object.entries({ partition, offset, limit, contains })) if (input.value) query.set(key, input.value);
    try {
      drawRecords(place, await get(`/api/records?${query}`));
    } catch (error) {
      place.replaceChildren(note("bad", visible(error.message)));
    }
    button.disabled = false;
  });
  return element("section", {}, element("h2", {}, "Records"), form, place);
}

function drawRecords(place, { records: found, scanned, stopped }) {
  const said = `${found.length} of ${scanned} records that were read${stopped ? `; the look ended early: ${stopped}` : ""}`;
  place.replaceChildren(element("p", { className: "muted" }, said), ...found.map((record) => element("article", {},
    element("header", {},
      element("span", {}, `partition ${record.partition}`), element("span", {}, `offset ${record.offset}`),
      record.timestamp < 0 ? element("span", {}, "no timestamp") : element("span", {}, moment(record.timestamp), ` by the ${record.timestamp_by}`)),
    field("key", record.key), field("value", record.value),
    ...record.headers.map((header) => field(`header ${header.name}`, header.size === undefined ? null : header)),
    record.headers_left_out ? element("p", { className: "muted" }, `and ${record.headers_left_out} more headers`) : null)));
}

function field(name, found) {
  if (found === null) return element("div", {}, element("span", { className: "muted" }, `${visible(name)}: null`));
  const kind = found.base64 === undefined ? (found.json ? "JSON, " : "") : "base 64 of ";
  const schema = found.schema === undefined ? "" : `schema ${found.schema}, `;
  const size = `${schema}${kind}${count(found.size)} bytes${found.cut ? ", cut" : ""}`;
  const problem = found.problem === undefined ? null : element("p", { className: "muted" }, visible(found.problem));
  return element("div", {}, element("span", { className: "muted" }, `${visible(name)} (${size})`), problem, element("pre", { tabIndex: 0 }, visible(found.text ?? found.base64)));
}

const regionColumns = [
  { name: "Region", className: "wide head", cell: (row) => link("region", row.region, { "data-row": "", "data-key": row.region }) },
  { name: "Sequence", className: "number", cell: (row) => count(row.sequence) },
  { name: "Term", className: "number", cell: (row) => count(row.term) },
  { name: "Epoch", className: "number", cell: (row) => count(row.epoch) },
  { name: "Groups", className: "wide", cell: (row) => visible(row.groups.join(", ")) },
  { name: "Stopped", className: "wide", cell: (row) => visible(row.stopped) },
];

function regions(main) {
  const place = element("div"), failed = element("div");
  main.append(element("h1", {}, "Regions"), failed, place);
  const show = (body) => place.replaceChildren(table(regionColumns, body.regions, { empty: "no regions" }));
  return { path: "/api/regions", isLive: true, show, failed: failures(failed) };
}

const regionMemberColumns = [
  { name: "Member", className: "wide head", cell: (row) => visible(row.member) },
  { name: "Group", cell: (row) => link("group", row.group, { "data-key": row.group }) },
  { name: "Phase", cell: (row) => visible(row.phase) },
  { name: "Connected", cell: (row) => (row.connected ? "yes" : "no") },
  { name: "Partitions", className: "wide", cell: (row) => visible(row.partitions.join(" ")) },
  { name: "Sink", className: "wide", cell: (row) => visible(row.sink) },
  { name: "Dead letters", className: "number", cell: (row) => count(row.dead_letters) },
  { name: "Waits for", className: "wide", cell: (row) => visible(row.waits_for) },
];
const sinkColumns = [
  { name: "Sink", className: "wide head", cell: (row) => visible(row.sink) },
  { name: "Published", className: "number", cell: (row) => count(row.published) },
  { name: "Unpublished", className: "number", cell: (row) => count(row.unpublished) },
  { name: "Publisher", cell: (row) => visible(row.publisher) },
  { name: "Waits for", className: "wide", cell: (row) => visible(row.waits_for) },
];

function region(main, name) {
  const body = element("div"), failed = element("div");
  main.append(element("h1", {}, visible(name)), failed, body);
  const show = ({ region: found }) => body.replaceChildren(
    facts([
      ["State", found.state], ["Sequence", count(found.sequence)], ["Published", count(found.published)], ["Unpublished", count(found.unpublished)],
      ["Term", count(found.term)], ["Epoch", count(found.epoch)], ["Last checkpoint", duration(found.sequence_ms)], ["Stopped", found.stopped],
      ["Resets", Object.entries(found.resets).map(([why, number]) => `${why} ${number}`).join(", ")],
    ]),
    element("h2", {}, "Members"), table(regionMemberColumns, found.members, { empty: "no members" }),
    element("h2", {}, "Sinks"), table(sinkColumns, found.sinks, { empty: "no sinks" }),
  );
  return { path: `/api/region?name=${encodeURIComponent(name)}`, isLive: true, show, failed: failures(failed) };
}

const coordinatorColumns = [
  { name: "Coordinator", className: "number head", cell: (row) => count(row.id) },
  { name: "Address", className: "wide", cell: (row) => visible(row.address) },
  { name: "Rack", cell: (row) => visible(row.rack) },
  { name: "Elected", cell: (row) => (row.elected ? "yes" : "no") },
  { name: "Shards", className: "number", cell: (row) => count(row.shards) },
  { name: "Map", className: "number", cell: (row) => (row.map_version < 0 ? "" : count(row.map_version)) },
  { name: "Trouble", className: "wide", cell: (row) => visible(row.trouble) },
];
const shardColumns = [
  { name: "Shard", className: "number head", cell: (row) => count(row.shard) },
  { name: "Coordinator", className: "number", cell: (row) => count(row.coordinator) },
  { name: "Phase", cell: (row) => visible(row.phase) },
  { name: "Groups", className: "number", cell: (row) => count(row.groups) },
  { name: "Term", className: "number", cell: (row) => count(row.term) },
  { name: "Proof", className: "number", cell: (row) => (row.proof_age_ms === null ? "" : duration(row.proof_age_ms)) },
  { name: "Append p99", className: "number", cell: (row) => (row.append_p99_ms === null ? "" : `${row.append_p99_ms} ms`) },
  { name: "Fences", className: "number", cell: (row) => count(row.fences) },
];

function coordinators(main) {
  const place = element("div"), failed = element("div");
  main.append(element("h1", {}, "Coordinators"), failed, place);
  const show = (body) => place.replaceChildren(
    table(coordinatorColumns, body.coordinators, { empty: "no coordinators of kohort's: the brokers coordinate the groups" }),
    ...(body.coordinators.length ? [element("h2", {}, "Shards"), table(shardColumns, body.shards, { empty: "no shards" })] : []),
  );
  return { path: "/api/coordinators", isLive: true, show, failed: failures(failed) };
}

export const pages = {
  groups: { make: groups }, group: { make: group, list: "groups" },
  topics: { make: topics }, topic: { make: topic, list: "topics" },
  regions: { make: regions }, region: { make: region, list: "regions" },
  coordinators: { make: coordinators },
};
