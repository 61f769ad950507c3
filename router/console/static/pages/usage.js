// What was used and what it cost, by day; and what tokens cost.
import { call, get, may, path } from "../api.js";
import { Chart } from "../chart.js";
import { csv, dollars, download, whole } from "../format.js";
import { html } from "../html.js";
import { Badge, Button, Card, Choice, Field, Problem, Stat, Table, useLoaded, Waiting } from "../parts.js";
import { useState } from "../vendor/hooks.js";

/** @typedef {import("../types").Usage} Usage */

/** @param {Date} day */
const date = (day) => day.toISOString().slice(0, 10);

/** @param {string} day */
const noon = (day) => Date.parse(`${day}T12:00:00Z`) / 1e3;

/** @param {{ tenant: import("../types").Tenant, session: import("../types").Session }} props */
export const UsageOf = ({ tenant, session }) => {
  const [days, setDays] = useState("30");
  const [by, setBy] = useState("model");
  const since = date(new Date(Date.now() - Number(days) * 86400e3));
  const where = session.platform_admin || may("organisation.read") ? path`/admin/tenants/${tenant.id}/usage` : "/v1/usage";
  const { value, problem } = useLoaded(async () => (await get(`${where}?since=${since}&by=day,${by}`)).data, [days, by]);
  if (!value) return html`<${Waiting} problem=${problem} />`;
  /** @type {Usage[]} */
  const rows = value;
  const dates = Array.from({ length: Number(days) + 1 }, (_, at) => date(new Date(Date.now() - (Number(days) - at) * 86400e3)));
  /** @param {Usage} row */
  const group = (row) => String(/** @type {any} */ (row)[by]);
  const groups = [...new Set(rows.map(group))].slice(0, 5);
  /** @param {(row: Usage) => number} of */
  const lines = (of) => groups.map((name) => dates.map((day) => rows.filter((row) => row.day === day && group(row) === name).reduce((sum, row) => sum + of(row), 0)));
  /** @param {(row: Usage) => number} of */
  const sum = (of) => rows.reduce((total, row) => total + of(row), 0);
  const x = dates.map(noon);
  /** @param {number} at */
  const day = (at) => new Date(at * 1e3).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const save = () => download(`usage-${tenant.name.replace(/[^\w-]+/g, "_")}-${since}.csv`, csv(["day", by, "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_microdollars"],
    rows.map((row) => [row.day, group(row), row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_microdollars])));
  return html`<div class="filters"><${Field} label="Since"><${Choice} value=${days} options=${[["7", "7 days"], ["30", "30 days"], ["90", "90 days"]]} change=${setDays} /><//>
      <${Field} label="By"><${Choice} value=${by} options=${["model", "key", "user"]} change=${setBy} /><//><button type="button" onClick=${save} disabled=${!rows.length}>CSV</button></div>
    <${Problem} problem=${problem} />
    <dl class="stats"><${Stat} name="Requests" value=${whole(sum((row) => row.requests))} /><${Stat} name="Read" value=${whole(sum((row) => row.prompt_tokens))} note="tokens" />
      <${Stat} name="Cached" value=${whole(sum((row) => row.cached_tokens))} note="tokens" /><${Stat} name="Written" value=${whole(sum((row) => row.completion_tokens))} note="tokens" />
      <${Stat} name="Cost" value=${dollars(sum((row) => row.cost_microdollars))} /></dl>
    ${rows.length ? html`<div class="grid plots">
      <${Card}><${Chart} label="Tokens per day, prompt and completion" series=${groups} data=${[x, ...lines((row) => row.prompt_tokens + row.completion_tokens)]} xShow=${day} kind=${groups.length > 1 ? "line" : "bars"} show=${whole} height=${180} /><//>
      <${Card}><${Chart} label="Cost per day" series=${groups} data=${[x, ...lines((row) => row.cost_microdollars)]} xShow=${day} kind=${groups.length > 1 ? "line" : "bars"} show=${(/** @type {number | null} */ v) => (v == null ? "–" : dollars(v))} height=${180} /><//></div>` : null}
    <${Card} title="Days"><${Table} label="Usage by day" rows=${[...rows].reverse()} empty="No usage." columns=${[
      { title: "Day", cell: (/** @type {Usage} */ row) => row.day }, { title: by, cell: group }, { title: "Requests", number: true, cell: (/** @type {Usage} */ row) => whole(row.requests) },
      { title: "Read", number: true, cell: (/** @type {Usage} */ row) => whole(row.prompt_tokens) }, { title: "Cached", number: true, cell: (/** @type {Usage} */ row) => whole(row.cached_tokens) },
      { title: "Written", number: true, cell: (/** @type {Usage} */ row) => whole(row.completion_tokens) }, { title: "Cost", number: true, cell: (/** @type {Usage} */ row) => dollars(row.cost_microdollars) }]} /><//>`;
};

/** Who uses how much, this month and now; who takes more than their share of what others want is named. */
export const Everyone = () => {
  const { value, problem } = useLoaded(async () => {
    const [tenants, usage, now] = await Promise.all([get("/admin/tenants"), get("/admin/usage?by=organisation"), get("/admin/now")]);
    return { tenants: /** @type {import("../types").Tenant[]} */ (tenants.data), usage: /** @type {Usage[]} */ (usage.data), now: /** @type {import("../types").Now} */ (now) };
  }, [], 5000);
  if (!value) return html`<${Waiting} problem=${problem} />`;
  const rows = value.tenants.map((tenant) => ({ tenant, used: value.usage.find((each) => each.organisation === tenant.id), now: value.now.tenants.find((each) => each.tenant === tenant.id) }))
    .sort((a, b) => (b.used?.cost_microdollars ?? 0) - (a.used?.cost_microdollars ?? 0) || (b.used?.completion_tokens ?? 0) - (a.used?.completion_tokens ?? 0));
  const noisy = rows.filter((row) => row.now?.noisy);
  /** @typedef {typeof rows[number]} Row */
  const save = () => download("tenants.csv", csv(["tenant", "name", "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_microdollars"],
    rows.map(({ tenant, used }) => [tenant.id, tenant.name, used?.requests ?? 0, used?.prompt_tokens ?? 0, used?.cached_tokens ?? 0, used?.completion_tokens ?? 0, used?.cost_microdollars ?? 0])));
  return html`<${Problem} problem=${problem} />
    ${noisy.length ? html`<p class="notice">Noisy now: ${noisy.map((row) => `${row.tenant.name} takes ${row.now?.noisy?.toFixed(1)}× its share`).join("; ")}. Other tenants still get their share.</p>` : null}
    <${Card} title="This month, and now" aside=${html`<button type="button" onClick=${save}>CSV</button>`}><${Table} label="Tenants" rows=${rows} columns=${[
      { title: "Tenant", cell: (/** @type {Row} */ row) => html`<a href=${path`#/tenants/${row.tenant.id}/usage`}>${row.tenant.name}</a> ${row.now?.noisy ? html`<${Badge} tone="warn">noisy: ${row.now.noisy.toFixed(1)}× its share<//>` : null}` },
      { title: "Requests", number: true, cell: (/** @type {Row} */ row) => whole(row.used?.requests ?? 0) }, { title: "Read", number: true, cell: (/** @type {Row} */ row) => whole(row.used?.prompt_tokens ?? 0) },
      { title: "Written", number: true, cell: (/** @type {Row} */ row) => whole(row.used?.completion_tokens ?? 0) }, { title: "Cost", number: true, cell: (/** @type {Row} */ row) => dollars(row.used?.cost_microdollars ?? 0) },
      { title: "Running now", number: true, cell: (/** @type {Row} */ row) => whole(row.now?.in_flight ?? 0) }, { title: "Tokens/s now", number: true, cell: (/** @type {Row} */ row) => whole(row.now?.tokens_per_s ?? 0) }]} /><//>`;
};

export const Prices = () => {
  const { value, problem, again } = useLoaded(async () => {
    const [prices, models] = await Promise.all([get("/admin/prices"), get("/v1/models")]);
    return { prices: /** @type {import("../types").Price[]} */ (prices.data), models: models.data.map((/** @type {any} */ each) => each.id) };
  }, []);
  const [model, setModel] = useState("");
  const [given, setGiven] = useState({ prompt: "", cached: "", completion: "" });
  if (!value) return html`<${Waiting} problem=${problem} />`;
  const save = async () => {
    const body = { prompt: Math.round(Number(given.prompt) * 1e6), completion: Math.round(Number(given.completion) * 1e6),
      ...(given.cached.trim() ? { cached_prompt: Math.round(Number(given.cached) * 1e6) } : {}) };
    await call("PUT", path`/admin/prices/${model || value.models[0]}`, body);
    await again();
  };
  /** @param {"prompt" | "cached" | "completion"} name */
  const input = (name) => ({ inputmode: "decimal", value: given[name], onInput: (/** @type {any} */ event) => setGiven({ ...given, [name]: event.target.value }) });
  return html`<${Card} title="Prices, in dollars per million tokens"><${Problem} problem=${problem} />
    <${Table} label="Prices" rows=${value.prices} empty="No prices: tokens cost nothing." columns=${[
      { title: "Model", cell: (/** @type {any} */ row) => html`<b>${row.model}</b>` }, { title: "Read", number: true, cell: (/** @type {any} */ row) => dollars(row.prompt) },
      { title: "Cached", number: true, cell: (/** @type {any} */ row) => dollars(row.cached_prompt) }, { title: "Written", number: true, cell: (/** @type {any} */ row) => dollars(row.completion) },
      { title: "", cell: (/** @type {any} */ row) => (may("price.write") ? html`<${Button} act=${async () => { await call("DELETE", path`/admin/prices/${row.model}`); await again(); }}>Remove<//>` : null) }]} />
    ${may("price.write") ? html`<div class="row form"><${Field} label="Model"><${Choice} value=${model || value.models[0]} options=${value.models} change=${setModel} /><//>
      <${Field} label="Read"><input ...${input("prompt")} /><//><${Field} label="Cached"><input placeholder="as read" ...${input("cached")} /><//><${Field} label="Written"><input ...${input("completion")} /><//>
      <${Button} tone="primary" disabled=${!given.prompt || !given.completion} act=${save}>Set<//></div>` : null}<//>`;
};
