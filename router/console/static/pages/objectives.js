// What 95 of 100 requests are to keep, beside what they kept.
import { call, get, may, path } from "../api.js";
import { percent, time, whole } from "../format.js";
import { html } from "../html.js";
import { Badge, Button, Card, Dialog, Field, Problem, Table, useLoaded, Waiting } from "../parts.js";
import { useState } from "../vendor/hooks.js";
import { Tuner } from "./tuner.js";
import { WhatIf } from "./what_if.js";

/** @typedef {import("../types").ObjectivesOfModel} ObjectivesOfModel */
/** @typedef {import("../types").Standing} Standing */

const METRICS = /** @type {Record<string, string>} */ ({ first_token: "First token", inter_token: "Between tokens", end_to_end: "End to end" });

/** @param {{ rest: string[] }} props */
export const Objectives = ({ rest }) => {
  const { value, problem, again } = useLoaded(async () => (await get("/admin/objectives")).data, [], 5000);
  const [setting, setSetting] = useState(/** @type {{ model: ObjectivesOfModel, tier: string } | null} */ (null));
  if (!value) return html`<${Waiting} problem=${problem} />`;
  /** @type {ObjectivesOfModel[]} */
  const models = value;
  const texts = models.filter((model) => model.kind !== "embeddings" && model.kind !== "tensors").map((model) => model.model);
  const simulates = may("simulation.run") && texts.length > 0, asked = rest[0] === "what-if" && simulates;
  return html`<div class="title"><h1>Objectives</h1><p class="muted">targets for 95% of requests, and the values of the last 5 minutes over all routers</p></div>
    ${simulates ? html`<nav class="tabs" aria-label="Objectives"><a href="#/objectives" aria-current=${asked ? undefined : "page"}>Set and kept</a>
      <a href="#/objectives/what-if" aria-current=${asked ? "page" : undefined}>What if</a></nav>` : null}
    <${Problem} problem=${problem} />
    ${asked ? html`<${WhatIf} key=${rest.join("/")} models=${texts} rest=${rest.slice(1)} />` : html`<${Standings} models=${models} set=${(/** @type {ObjectivesOfModel} */ model, /** @type {string} */ tier) => setSetting({ model, tier })} />`}
    ${setting ? html`<${SetObjective} ...${setting} simulates=${simulates} close=${() => setSetting(null)} done=${again} />` : null}`;
};

/** @param {{ models: ObjectivesOfModel[], set: (model: ObjectivesOfModel, tier: string) => void }} props */
const Standings = ({ models, set }) => html`
    ${models.map((model) => html`<${Card} key=${model.model} title=${model.model} aside=${html`<span class="muted">${model.kind ?? ""}</span>`}>
      <${Table} label=${`Objectives of ${model.model}`} rows=${rowsOf(model)} columns=${columns((tier) => set(model, tier))} /><//>`)}
    <${Card} title="Effects">
      <p>A request whose first token would be too late is refused on arrival. Steps and batches are as large as the tightest objective between tokens allows. Queue delays are tuned by measurement: see <a href="#/now">Now</a> for what was decided and why.</p><//>
    <${Tuner} />`;

/** @typedef {Standing & { tier: string, metric: string, first: boolean, asked: boolean }} Row */

/** @param {ObjectivesOfModel} model @returns {Row[]} */
const rowsOf = (model) => Object.entries(model.tiers).flatMap(([tier, metrics]) => {
  const asked = Object.values(metrics).some((each) => each.objective_s != null);
  return Object.entries(metrics).map(([metric, standing], at) => ({ ...standing, tier, metric, first: at === 0, asked }));
});

/** @param {(tier: string) => void} set @returns {import("../parts.js").Column<Row>[]} */
const columns = (set) => [
  { title: "Tier", cell: (row) => (row.first ? html`<b>${row.tier}</b>` : "") },
  { title: "Measure", cell: (row) => METRICS[row.metric] ?? row.metric },
  { title: "Objective", number: true, cell: (row) => time(row.objective_s) },
  { title: "p50", number: true, cell: (row) => time(row.p50_s) },
  { title: "p95", number: true, cell: (row) => time(row.p95_s) },
  { title: "Kept by", number: true, cell: (row) => percent(row.attained) },
  { title: "Samples", number: true, cell: (row) => whole(row.samples) },
  { title: "", cell: (row) => html`<${Badge} tone=${row.verdict === "kept" ? "good" : row.verdict === "missed" ? "bad" : ""}>${row.verdict}<//>` },
  { title: "", cell: (row) => (row.first && may("objective.write") ? html`<button type="button" aria-label=${`Set the objective of ${row.tier}`} onClick=${() => set(row.tier)}>${row.asked ? "Change…" : "Set…"}</button>` : null) },
];

/** @param {{ model: ObjectivesOfModel, tier: string, simulates: boolean, close: () => void, done: () => Promise<void> }} props */
const SetObjective = ({ model, tier, simulates, close, done }) => {
  const known = model.tiers[tier] ?? {};
  const [given, setGiven] = useState(() => Object.fromEntries(Object.entries(known).map(([metric, each]) => [metric, each.objective_s == null ? "" : String(each.objective_s * 1e3)])));
  const where = path`/admin/objectives/${model.model}/${tier}`;
  const save = async () => {
    const wanted = Object.entries(given).filter(([, ms]) => ms.trim()).map(([metric, ms]) => [`${metric}_s`, Number(ms) / 1e3]);
    await (wanted.length ? call("PUT", where, Object.fromEntries(wanted)) : call("DELETE", where));
    await done();
    close();
  };
  const tryIt = () => {
    close();
    location.hash = path`#/objectives/what-if/${model.model}/${tier}/${given.first_token}/${given.inter_token}`;
  };
  return html`<${Dialog} title=${`${model.model}, ${tier}`} close=${close}>
    <div class="fields">${Object.entries(known).map(([metric, each]) => html`<${Field} key=${metric} label=${`${METRICS[metric]}, ms`} hint=${each.p95_s == null ? "nothing measured" : `p95 is ${time(each.p95_s)} now`}>
      <input inputmode="decimal" placeholder="none" value=${given[metric]} onInput=${(/** @type {any} */ event) => setGiven({ ...given, [metric]: event.target.value })} /><//>`)}</div>
    <p class="muted">Routers apply it within a second. An objective shorter than a single request takes causes nearly all requests to be refused.</p>
    <div class="row end">${simulates && "first_token" in known ? html`<button type="button" class="quiet" onClick=${tryIt}>What if?</button>` : null}
      <button type="button" onClick=${close}>Cancel</button><${Button} tone="primary" act=${save}>Save<//></div>
  <//>`;
};
