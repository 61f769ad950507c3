// A recorded hour or a trace under two ways to serve it, simulated by the server.
import { call, get, path } from "../api.js";
import { Chart } from "../chart.js";
import { clock, csv, download, percent, rate, span, time, whole } from "../format.js";
import { html } from "../html.js";
import { Card, Choice, Field, Problem, Table, useLoaded, Waiting } from "../parts.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";

/** @typedef {import("../types").Simulation} Simulation */
/** @typedef {import("../types").SimulatedVariant} SimulatedVariant */
/** @typedef {{ policy: string, replicas: string, terms: Record<string, string> }} Way */

const TIERS = ["interactive", "standard", "batch"];
const TERMS = /** @type {[string, string][]} */ ([["first_token_s", "first token"], ["inter_token_s", "between tokens"]]);
const POLICIES = /** @type {[string, string][]} */ ([["objectives", "objectives"], ["first-come", "first come, first served"], ["cap", "a fixed number at a time"], ["oracle", "objectives, lengths known"]]);

/** @param {import("../types").RecordedHours} now @param {string} policy @returns {Way} */
const wayOf = (now, policy) => ({ policy, replicas: String(now.replicas), terms: termsOf(now.objectives) });

/** By tier and term, in milliseconds. @param {Record<string, import("../types").Terms>} objectives @returns {Record<string, string>} */
const termsOf = (objectives) => Object.fromEntries(Object.entries(objectives).flatMap(([tier, terms]) =>
  Object.entries(terms).filter(([, each]) => each != null).map(([term, each]) => [`${tier} ${term}`, String(Math.round(Number(each) * 1e4) / 10)])));

/** @param {Way} way */
const bodyOf = (way) => {
  /** @type {Record<string, Record<string, number>>} */
  const objectives = {};
  for (const [name, text] of Object.entries(way.terms)) {
    const [tier, term] = name.split(" ");
    if (text.trim()) (objectives[tier] ??= {})[term] = Number(text) / 1e3;
  }
  return { policy: way.policy, replicas: Number(way.replicas) || 1, objectives };
};

/** @param {{ models: string[], rest: string[] }} props */
export const WhatIf = ({ models, rest }) => {
  const [model, setModel] = useState(models.includes(rest[0]) ? rest[0] : models[0]);
  const { value, problem } = useLoaded(() => get(path`/admin/simulations/hours?model=${model}`), [model]);
  return html`<${Card} title="What if" aside=${models.length > 1 ? html`<${Choice} label="Model" value=${model} options=${models} change=${setModel} />` : null}>
    <p class="muted small">Plays requests through the router's own admission and engines of this model's step cost, on the server, beside what it serves.</p>
    ${value ? html`<${Question} key=${model} now=${value} proposed=${proposalOf(rest)} />` : html`<${Waiting} problem=${problem} />`}<//>`;
};

/** An objective that somebody is about to set: tier, first token, between tokens. @param {string[]} rest */
const proposalOf = ([, tier, ...terms]) => (TIERS.includes(tier)
  ? Object.fromEntries(TERMS.map(([term], at) => [`${tier} ${term}`, terms[at] ?? ""])) : null);

/** @param {{ now: import("../types").RecordedHours, proposed: Record<string, string> | null }} props */
const Question = ({ now, proposed }) => {
  const [from, setFrom] = useState(now.data.length ? String(now.data[0].began_s) : "generated");
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const [speed, setSpeed] = useState("1");
  const [ways, setWays] = useState(() => {
    const first = wayOf(now, "objectives");
    return proposed ? [first, { ...first, terms: { ...first.terms, ...proposed } }] : [first, wayOf(now, "first-come")];
  });
  const [found, setFound] = useState(/** @type {Simulation | null} */ (null));
  const [problem, setProblem] = useState(/** @type {unknown} */ (null));
  const [running, setRunning] = useState(/** @type {AbortController | null} */ (null));
  const latest = useRef(running);
  latest.current = running;
  useEffect(() => () => latest.current?.abort(), []);
  const run = async () => {
    const stopping = new AbortController();
    setRunning(stopping);
    setProblem(null);
    try {
      const trace = from === "file" ? { text: await /** @type {File} */ (file).text(), name: /** @type {File} */ (file).name }
        : from === "generated" ? {} : { recorded_from_s: Number(from) };
      setFound(await call("POST", "/admin/simulations", { model: now.model, trace, rate: Number(speed), variants: ways.map(bodyOf) }, stopping.signal));
    } catch (error) {
      if (!stopping.signal.aborted) setProblem(error);
    } finally {
      setRunning(null);
    }
  };
  const traces = /** @type {[string, string][]} */ ([
    ...now.data.map((each) => [String(each.began_s), `${clock(each.began_s).slice(0, 5)} to ${clock(each.began_s + 3600).slice(0, 5)}: ${whole(each.requests)} requests`]),
    ["generated", "ten generated minutes"], ["file", "a file"]]);
  return html`<div class="filters of">
      <${Field} label="Requests of"><${Choice} value=${from} options=${traces} change=${setFrom} /><//>
      ${from === "file" ? html`<${Field} label="CSV or JSON lines"><input type="file" accept=".csv,.jsonl,.ndjson,text/csv" onChange=${(/** @type {any} */ event) => setFile(event.target.files[0] ?? null)} /><//>` : null}
      <${Field} label="Times as fast"><input inputmode="decimal" value=${speed} onInput=${(/** @type {any} */ event) => setSpeed(event.target.value)} /><//></div>
    <div class="ways">${ways.map((way, at) => html`<${WayForm} name=${"AB"[at]} way=${way} change=${(/** @type {Way} */ next) => setWays(ways.map((each, other) => (other === at ? next : each)))} />`)}</div>
    <p class="muted small">${engineWords(now.engine)}</p>
    <div class="row"><button type="button" class="primary" disabled=${Boolean(running) || (from === "file" && !file) || !(Number(speed) > 0)} onClick=${run}>${running ? "Simulating…" : "Compare"}</button>
      ${running ? html`<button type="button" onClick=${() => running.abort()}>Stop</button>` : null}</div>
    <${Problem} problem=${problem} />
    <div aria-live="polite">${found ? html`<${Outcome} found=${found} />` : null}</div>`;
};

/** @param {import("../types").SimulatedEngine} engine */
const engineWords = ({ cost, slots, kv_tokens, is_example }) =>
  `${is_example ? "An example, until the engine has reported its own" : "As learned by its engine"}: a step takes ${Number(cost.base_ms.toPrecision(3))} ms, `
  + `${Number(cost.prefill_token_ms.toPrecision(2))} ms for each prompt token and ${Number(cost.decode_sequence_ms.toPrecision(2))} ms for each of ${whole(slots)} sequences; the cache holds ${whole(kv_tokens)} tokens.`;

/** @param {{ name: string, way: Way, change: (way: Way) => void }} props */
const WayForm = ({ name, way, change }) => html`<fieldset><legend>${name}</legend>
  <div class="fields policy"><${Field} label="Policy"><${Choice} value=${way.policy} options=${POLICIES} change=${(/** @type {string} */ policy) => change({ ...way, policy })} /><//>
    <${Field} label="Replicas"><input inputmode="numeric" value=${way.replicas} onInput=${(/** @type {any} */ event) => change({ ...way, replicas: event.target.value })} /><//></div>
  <div class="terms"><span class="muted">Objectives, ms</span>${TERMS.map(([, words]) => html`<span class="muted">${words}</span>`)}
    ${TIERS.flatMap((tier) => [html`<span>${tier}</span>`, ...TERMS.map(([term, words]) => html`<input inputmode="decimal" placeholder="none" aria-label=${`${tier}, ${words}`} value=${way.terms[`${tier} ${term}`] ?? ""}
      onInput=${(/** @type {any} */ event) => change({ ...way, terms: { ...way.terms, [`${tier} ${term}`]: event.target.value } })} />`)])}</div></fieldset>`;

/** @typedef {{ name: string, values: (number | null)[], show: (value: number | null) => string, less?: boolean }} Row */

/** @param {SimulatedVariant[]} variants @returns {Row[]} */
const rowsOf = (variants) => {
  /** @param {string} name @param {(variant: SimulatedVariant) => number | null | undefined} of @param {(value: number | null) => string} show @param {boolean} [less] @returns {Row} */
  const row = (name, of, show, less) => ({ name, values: variants.map((each) => of(each) ?? null), show, less });
  const tiers = TIERS.filter((tier) => variants.some((each) => each.figures.tiers.some((own) => own.tier === tier)));
  /** @param {SimulatedVariant} each @param {string} tier */
  const own = (each, tier) => each.figures.tiers.find((one) => one.tier === tier);
  return [
    row("Goodput, requests/s", (each) => each.figures.goodput_per_s, rate),
    row("Kept their objectives", (each) => each.figures.good / (each.figures.offered || 1), percent),
    row("Refused", (each) => each.figures.refused / (each.figures.offered || 1), percent, true),
    row("Tokens/s", (each) => each.figures.tokens_per_s, rate),
    row("Fairness between tenants", (each) => each.figures.fairness, (value) => (value == null ? "–" : value.toFixed(2))),
    row("Longest backlog", (each) => each.figures.drain_peak_s, time, true),
    ...tiers.flatMap((tier) => [
      row(`${tier}: kept`, (each) => { const one = own(each, tier); return one ? one.good / (one.offered || 1) : null; }, percent),
      row(`${tier}: first token p50`, (each) => own(each, tier)?.first_token_p50_s, time, true),
      row(`${tier}: first token p95`, (each) => own(each, tier)?.first_token_p95_s, time, true),
      row(`${tier}: between tokens p95`, (each) => own(each, tier)?.inter_token_p95_s, time, true),
    ]),
    row("Engines busy", (each) => each.figures.busy_share, percent, true),
    row("Sequences in a step", (each) => each.figures.mean_batch, rate),
  ];
};

/** Which of two is better by more than a hair; -1 is neither. @param {Row} row */
const better = ({ values: [a, b], less }) => {
  if (a == null || b == null || Math.abs(a - b) <= 0.01 * Math.max(Math.abs(a), Math.abs(b))) return -1;
  return (a < b) === Boolean(less) ? 0 : 1;
};

/** The moments of all on one axis. @param {SimulatedVariant[]} variants @param {(moment: SimulatedVariant["moments"][number]) => number | null} of */
const together = (variants, of) => {
  const at = [...new Set(variants.flatMap((each) => each.moments.map((moment) => moment.at_s)))].sort((a, b) => a - b);
  return [at, ...variants.map(({ moments }) => {
    let next = 0;
    return at.map((now) => {
      while (next < moments.length && moments[next].at_s < now) next++;
      return next < moments.length ? of(moments[next]) : null;
    });
  })];
};

/** @param {{ found: Simulation }} props */
const Outcome = ({ found }) => {
  const { trace, variants } = found, rows = rowsOf(variants);
  const names = variants.map((each, at) => `${"AB"[at]}: ${each.policy}${each.replicas > 1 ? ` × ${each.replicas}` : ""}`);
  const save = () => download("what-if.csv", csv(["figure", ...names], rows.map((row) => [row.name, ...row.values])));
  /** @param {number} at */
  const second = (at) => (at < 120 ? `${Math.round(at)} s` : span(at));
  const waiting = together(variants, (moment) => moment.waiting), running = together(variants, (moment) => moment.running);
  return html`<div class="outcome"><div class="card-head"><h3>${whole(trace.requests)} requests in ${span(trace.duration_s)}${trace.shortened ? `, ${whole(trace.shortened)} of them shortened to fit` : ""}</h3><button type="button" onClick=${save}>CSV</button></div>
    <${Table} label="Comparison" rows=${rows} columns=${[{ title: "", cell: (/** @type {Row} */ row) => row.name },
      ...names.map((name, at) => ({ title: name, number: true, cell: (/** @type {Row} */ row) => html`<span class=${better(row) === at ? "better" : ""}>${row.show(row.values[at])}</span>` }))]} />
    <div class="grid plots"><${Chart} label="Waiting" series=${names} data=${waiting} x="number" xShow=${second} show=${whole} height=${180} legend />
      <${Chart} label="Running" series=${names} data=${running} x="number" xShow=${second} show=${whole} height=${180} legend /></div></div>`;
};
