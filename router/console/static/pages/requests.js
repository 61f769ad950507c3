// The last requests, and how one of them went.
import { get, may, path } from "../api.js";
import { clock, dollars, download, csv, moment, percent, time, whole } from "../format.js";
import { html } from "../html.js";
import { Badge, Button, Card, Choice, Field, Problem, Stat, Table, useLoaded, Waiting } from "../parts.js";
import { useState } from "../vendor/hooks.js";
import { Waterfall } from "./life.js";

/** @typedef {import("../types").RequestSummary} RequestSummary */

/** @param {{ rest: string[] }} props */
export const Requests = ({ rest }) => (rest[0] ? html`<${One} id=${rest[0]} />` : html`<${List} />`);

/** @param {RequestSummary} row */
const tone = (row) => (row.status >= 500 || row.outcome === "failed" ? "bad" : row.status >= 400 ? "warn" : "good");

const List = () => {
  const [wanted, setWanted] = useState({ tenant: "", model: "", show: "all", slower: "" });
  const query = new URLSearchParams({ limit: "200" });
  if (wanted.tenant) query.set("tenant", wanted.tenant);
  if (wanted.model) query.set("model", wanted.model);
  if (wanted.show === "failed") query.set("failed", "true");
  else if (wanted.show !== "all") query.set("status", wanted.show);
  if (Number(wanted.slower) > 0) query.set("slower_than_ms", wanted.slower);
  const { value, problem } = useLoaded(async () => (await get(`/admin/requests?${query}`)).data, [query.toString()], 3000);
  /** @type {RequestSummary[]} */
  const rows = value ?? [];
  /** @param {"tenant" | "model" | "slower"} name */
  const input = (name) => ({ value: wanted[name], onInput: (/** @type {any} */ event) => setWanted({ ...wanted, [name]: event.target.value.trim() }) });
  const save = () => download("requests.csv", csv(["id", "at", "tenant", "model", "release", "tier", "status", "outcome", "prompt_tokens", "cached_tokens", "completion_tokens", "first_token_ms", "total_ms", "cost_microdollars"],
    rows.map((row) => [row.id, new Date(row.at_s * 1e3).toISOString(), row.tenant, row.model, row.release, row.tier, row.status, row.outcome, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.first_token_ms, row.total_ms, row.cost_microdollars])));
  return html`<div class="title"><h1>Requests</h1><p class="muted">the latest that this router answered</p></div>
    <form class="filters" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <${Field} label="Tenant"><input placeholder="all" ...${input("tenant")} /><//>
      <${Field} label="Model"><input placeholder="all" ...${input("model")} /><//>
      <${Field} label="Status"><${Choice} value=${wanted.show} options=${[["all", "all"], ["failed", "refused and failed"], ["200", "200"], ["400", "400"], ["429", "429"], ["499", "499"], ["503", "503"]]} change=${(/** @type {string} */ show) => setWanted({ ...wanted, show })} /><//>
      <${Field} label="Slower than, ms"><input inputmode="numeric" placeholder="0" ...${input("slower")} /><//>
      <button type="button" onClick=${save} disabled=${!rows.length}>CSV</button>
    </form>
    <${Problem} problem=${problem} />
    <${Card}>${value ? html`<${Table} label="Recent requests" rows=${rows} empty="No matching requests." keyOf=${(/** @type {RequestSummary} */ row) => row.id} columns=${COLUMNS} />` : html`<${Waiting} problem=${null} />`}<//>`;
};

/** @type {import("../parts.js").Column<RequestSummary>[]} */
const COLUMNS = [
  { title: "At", cell: (row) => html`<span title=${moment(row.at_s)}>${clock(row.at_s)}</span>` },
  { title: "Request", cell: (row) => html`<a href=${`#/requests/${row.id}`}>${row.id.split("-")[0]}-${row.id.split("-")[1]?.slice(0, 8)}…</a>` },
  { title: "Status", cell: (row) => html`<${Badge} tone=${tone(row)}>${row.status}${row.outcome && row.outcome !== "finished" ? ` ${row.outcome}` : ""}<//>` },
  { title: "Tenant", cell: (row) => row.tenant },
  { title: "Model", cell: (row) => (row.model ? `${row.model}@${row.release ?? "?"}` : html`<code>${row.route}</code>`) },
  { title: "Tier", cell: (row) => row.tier },
  { title: "Read", number: true, cell: (row) => whole(row.prompt_tokens) },
  { title: "Cached", number: true, cell: (row) => (row.prompt_tokens ? percent(row.cached_tokens / row.prompt_tokens) : "–") },
  { title: "Written", number: true, cell: (row) => whole(row.completion_tokens) },
  { title: "First token", number: true, cell: (row) => time(row.first_token_ms == null ? null : row.first_token_ms / 1e3) },
  { title: "Total", number: true, cell: (row) => time(row.total_ms / 1e3) },
  { title: "Price", number: true, cell: (row) => dollars(row.cost_microdollars) },
];

/** @param {{ id: string }} props */
const One = ({ id }) => {
  const { value, problem } = useLoaded(() => get(path`/admin/requests/${id}`), [id]);
  if (!value) return html`<${Waiting} problem=${problem} /><p><a href="#/requests">All requests</a></p>`;
  /** @type {import("../types").Waterfall} */
  const request = value;
  const about = /** @type {[string, unknown][]} */ ([
    ["Tenant", request.tenant], ["Key", request.key_id], ["Route", request.route], ["Model", request.model ? `${request.model}@${request.release}` : "–"],
    ["Tier", request.tier], ["Replica", request.replica ?? "not traced"], ["Trace", request.trace_id ?? "not traced"],
    ["Finish", request.finish_reason ?? "–"], ["Error", request.error ?? "–"],
  ]);
  return html`<div class="title"><h1>Request</h1><p class="muted"><code>${request.id}</code> · ${moment(request.at_s)} · <a href="#/requests">all requests</a></p></div>
    <dl class="stats">
      <${Stat} name="Status" value=${request.status} note=${request.outcome} tone=${tone(request) === "good" ? "" : tone(request)} />
      <${Stat} name="Total" value=${time(request.total_ms / 1e3)} />
      <${Stat} name="First token" value=${time(request.first_token_ms == null ? null : request.first_token_ms / 1e3)} />
      <${Stat} name="Read" value=${whole(request.prompt_tokens)} note=${`${whole(request.cached_tokens)} cached`} />
      <${Stat} name="Written" value=${whole(request.completion_tokens)} />
      <${Stat} name="Price" value=${dollars(request.cost_microdollars)} />
    </dl>
    <${Card} title="Waterfall">${request.stages.length ? html`<${Waterfall} request=${request} />` : html`<p class="muted">It was refused before its first stage ended.</p>`}
      ${request.stages.length && !request.steps.length ? html`<p class="muted small">The engine's steps are known of traced requests: those of the playground, and those with a sampled <code>traceparent</code> and <code>tracestate: inflight=steps</code>.</p>` : null}<//>
    ${may("request.read_content") ? html`<${Content} id=${id} />` : null}
    <${Card} title="Details"><dl class="pairs">${about.map(([name, own]) => html`<div><dt>${name}</dt><dd>${own}</dd></div>`)}</dl>
      ${request.attempts.length ? html`<${Table} label="Attempts" rows=${request.attempts} columns=${[{ title: "Attempt at", cell: (/** @type {any} */ row) => time(row.at_ms / 1e3) }, { title: "Replica", cell: (/** @type {any} */ row) => row["inflight.replica"] }, { title: "Ended", cell: (/** @type {any} */ row) => row["error.type"] ?? "answered" }]} />` : null}<//>`;
};

/** What people wrote is shown to who may read it, when they ask for it. @param {{ id: string }} props */
const Content = ({ id }) => {
  const [found, setFound] = useState(/** @type {{ prompts: string[], answers: string[] } | null} */ (null));
  const load = async () => setFound(await get(path`/admin/requests/${id}/content`));
  return html`<${Card} title="Stored content" aside=${found ? null : html`<${Button} act=${load}>Show it<//>`}>
    ${found
      ? html`${found.prompts.map((text) => html`<h3>Prompt</h3><pre class="code" tabindex="0">${text}</pre>`)}${found.answers.map((text) => html`<h3>Answer</h3><pre class="code" tabindex="0">${text}</pre>`)}`
      : html`<p class="muted">Kept, redacted, where the operator has set <code>prompt_log_dir</code>. Each view is recorded in the audit log.</p>`}<//>`;
};
