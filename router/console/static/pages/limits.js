// What a tenant may take, and what it may spend in a month.
import { call, get, may, path } from "../api.js";
import { dollars, whole } from "../format.js";
import { html } from "../html.js";
import { Button, Card, Field, Meter, Problem, useLoaded, Waiting } from "../parts.js";
import { useState } from "../vendor/hooks.js";

const AMOUNTS = /** @type {[string, string][]} */ ([
  ["requests_per_min", "Requests a minute"], ["request_burst", "Requests in a burst"], ["tokens_per_min", "Tokens a minute"], ["token_burst", "Tokens in a burst"],
  ["concurrent_requests", "Requests at a time"], ["weight", "Weight beside others"], ["slot_percent", "Most of a batch, %"],
  ["answers_cached_s", "Answers cached for, s"],
]);
const OF_TENANTS = ["weight", "slot_percent"];

/** @param {{ tenant: import("../types").Tenant }} props */
export const TenantLimits = ({ tenant }) => {
  const where = path`/admin/tenants/${tenant.id}/limits`;
  const { value, problem, again } = useLoaded(async () => {
    const [limits, usage] = await Promise.all([get(where), get(path`/admin/tenants/${tenant.id}/usage?by=model`).catch(() => ({ data: [] }))]);
    /** @type {import("../types").Usage[]} */
    const used = usage.data;
    return { limits: /** @type {Record<string, import("../types").Limits>} */ (limits), spent: used.reduce((sum, each) => sum + each.cost_microdollars, 0) };
  }, []);
  if (!value) return html`<${Waiting} problem=${problem} />`;
  const own = value.limits[tenant.id] ?? {};
  const budget = /** @type {number | null} */ (own.monthly_budget_microdollars ?? null);
  return html`<${Card} title="Budget of this month">
      ${budget ? html`<p><b>${dollars(value.spent)}</b> of ${dollars(budget)}</p><${Meter} part=${value.spent / budget} label="budget spent" tone=${value.spent > 0.9 * budget ? "bad" : ""} />` : html`<p><b>${dollars(value.spent)}</b> spent, without a budget.</p>`}<//>
    ${may("limits.write_organisation")
      ? html`<${Card} title="Limits"><${EditLimits} own=${own} where=${where} done=${again} /><//>`
      : html`<${Card} title="Limits"><dl class="pairs">${AMOUNTS.map(([name, words]) => html`<div><dt>${words}</dt><dd>${own[name] == null ? "no limit" : whole(Number(own[name]))}</dd></div>`)}</dl><//>`}
    <${Problem} problem=${problem} />`;
};

/** A key's are within its tenant's. @param {{ own: import("../types").Limits, where: string, done: () => Promise<void>, ofKey?: boolean }} props */
export const EditLimits = ({ own, where, done, ofKey = false }) => {
  const amounts = ofKey ? AMOUNTS.filter(([name]) => !OF_TENANTS.includes(name)) : AMOUNTS;
  const [given, setGiven] = useState(() => Object.fromEntries(AMOUNTS.map(([name]) => [name, own[name] == null ? "" : String(own[name])])));
  const [budget, setBudget] = useState(own.monthly_budget_microdollars == null ? "" : String(Number(own.monthly_budget_microdollars) / 1e6));
  const [hard, setHard] = useState(own.budget_is_hard !== false);
  const save = async () => {
    /** @type {Record<string, number | boolean>} */
    const body = { budget_is_hard: hard };
    for (const [name] of amounts) if (given[name].trim()) body[name] = Number(given[name]);
    if (budget.trim()) body.monthly_budget_microdollars = Math.round(Number(budget) * 1e6);
    await call("PUT", where, body);
    await done();
  };
  return html`<div class="fields">${amounts.map(([name, words]) => html`<${Field} key=${name} label=${words}><input inputmode="numeric" placeholder="no limit" value=${given[name]} onInput=${(/** @type {any} */ event) => setGiven({ ...given, [name]: event.target.value })} /><//>`)}
      <${Field} label="Dollars per month"><input inputmode="decimal" placeholder="no budget" value=${budget} onInput=${(/** @type {any} */ event) => setBudget(event.target.value)} /><//></div>
    <label class="check"><input type="checkbox" checked=${hard} onChange=${() => setHard(!hard)} /> refuse requests beyond the budget</label>
    <div class="row end"><${Button} tone="primary" act=${save}>Save<//></div>`;
};
