// The figures of a load test or of faults on purpose, opened in the browser; nothing of them is sent anywhere.
import { Chart } from "../chart.js";
import { csv, download, percent, rate, span, time, whole } from "../format.js";
import { html } from "../html.js";
import { Card, Problem, Stat, Table } from "../parts.js";
import { useMemo, useState } from "../vendor/hooks.js";
import { ChaosView, readChaos } from "./chaos.js";

/** @typedef {import("./chaos.js").ChaosRun} ChaosRun */

/**
 * @typedef {{ kind: string, tenant: string, tier: string, model: string, release: string, error: string, at_s: number, status: number,
 *   first_token_s: number | null, ended_s: number | null, prompt_tokens: number, completion_tokens: number, between_tokens_s: number | null }} Result
 * @typedef {{ first_token_s: number | null, between_tokens_s: number | null, ended_s: number | null }} Slo
 * @typedef {{ name: string, began_at: string, duration_s: number, about: Record<string, string>, slo: Record<string, Slo>,
 *   results: Result[], samples: { at_s: number, waiting: number | null, running: number | null, kv_used_ratio: number | null }[] }} Run
 */

const WORDS = 6;

/** Raises what is wrong with the file. @param {string} text @returns {Run | ChaosRun} */
const readRun = (text) => {
  const told = JSON.parse(text);
  if (told.kind === "chaos") return readChaos(told);
  if (told.version !== 1 || !Array.isArray(told.columns) || !Array.isArray(told.requests)) throw new Error("not a results.json of `inflight loadtest` nor a chaos.json of `inflight chaos`, version 1");
  const results = told.requests.map((/** @type {any[]} */ row) =>
    Object.fromEntries(told.columns.map((/** @type {string} */ name, /** @type {number} */ at) => [name, at < WORDS ? String(told.words[row[at]]) : row[at]])));
  return { name: String(told.name), began_at: String(told.began_at), duration_s: Number(told.duration_s), about: told.about ?? {}, slo: told.slo ?? {}, results, samples: told.samples ?? [] };
};

/** @param {(number | null)[]} values @param {number} part */
const quantile = (values, part) => {
  const known = /** @type {number[]} */ (values.filter((each) => each != null)).sort((a, b) => a - b);
  return known.length ? known[Math.min(known.length - 1, Math.ceil(part * known.length) - 1)] : null;
};

/** @param {Result} each */
const isAnswered = (each) => each.status >= 200 && each.status < 300 && !each.error && each.ended_s != null;

/** @param {Run} run @param {Result} each */
const isGood = (run, each) => {
  const slo = run.slo[each.tier];
  /** @param {number | null} seen @param {number | null | undefined} limit */
  const kept = (seen, limit) => seen == null || limit == null || seen <= limit;
  return isAnswered(each) && (!slo || (kept(each.first_token_s, slo.first_token_s) && kept(each.between_tokens_s, slo.between_tokens_s) && kept(each.ended_s, slo.ended_s)));
};

export const Runs = () => {
  const [runs, setRuns] = useState(/** @type {(Run | ChaosRun)[]} */ ([]));
  const [problem, setProblem] = useState(/** @type {unknown} */ (null));
  const [over, setOver] = useState(false);
  /** @param {FileList | null | undefined} files */
  const open = async (files) => {
    for (const file of files ?? [])
      try {
        const run = readRun(await file.text());
        setRuns((before) => [run, ...before]);
        setProblem(null);
      } catch (error) {
        setProblem(new Error(`${file.name}: ${/** @type {Error} */ (error).message}`));
      }
  };
  return html`<div class="title"><h1>Test runs</h1><p class="muted">read in the browser only, not uploaded</p></div>
    <label class=${over ? "drop over" : "drop"} onDragOver=${(/** @type {Event} */ event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)}
      onDrop=${(/** @type {any} */ event) => { event.preventDefault(); setOver(false); open(event.dataTransfer.files); }}>
      <input class="sr" type="file" accept=".json,application/json" multiple onChange=${(/** @type {any} */ event) => open(event.target.files)} />
      <b>Drop a results.json or chaos.json here, or choose one</b><span class="muted">as <code>inflight loadtest run</code> and <code>inflight chaos</code> write them beside their reports; several are shown below each other. Drag in a plot to zoom, double-click for all of it</span></label>
    <${Problem} problem=${problem} />
    ${runs.map((run, at) => html`<${"episodes" in run ? ChaosView : RunView} key=${runs.length - at} run=${run} />`)}`;
};

/** @param {{ run: Run }} props */
const RunView = ({ run }) => {
  const shown = useMemo(() => figures(run), [run]);
  const save = () => download(`${run.name.replace(/[^\w-]+/g, "_")}.csv`, csv(["at_s", "kind", "tenant", "tier", "model", "release", "status", "error", "first_token_s", "between_tokens_s", "ended_s", "prompt_tokens", "completion_tokens"],
    run.results.map((each) => [each.at_s, each.kind, each.tenant, each.tier, each.model, each.release, each.status, each.error, each.first_token_s, each.between_tokens_s, each.ended_s, each.prompt_tokens, each.completion_tokens])));
  /** @param {number} at */
  const second = (at) => `${Math.round(at)} s`;
  return html`<${Card} title=${run.name} aside=${html`<span class="muted">${run.began_at} · ${span(run.duration_s)}</span><button type="button" onClick=${save}>CSV</button>`}>
    <dl class="stats">
      <${Stat} name="Requests" value=${whole(run.results.length)} /><${Stat} name="Answered" value=${percent(shown.answered / (run.results.length || 1))} />
      <${Stat} name="Goodput" value=${`${rate(shown.good / run.duration_s)}/s`} note=${`${percent(shown.good / (run.results.length || 1))} good`} />
      <${Stat} name="Tokens/s" value=${rate(shown.tokens / run.duration_s)} /><${Stat} name="First token p95" value=${time(shown.first95)} note=${`p50 ${time(shown.first50)}`} />
      <${Stat} name="Between tokens p95" value=${time(shown.gap95)} note=${`p50 ${time(shown.gap50)}`} /></dl>
    <div class="grid plots">
      <${Chart} label="First token over time" series=${["first token"]} data=${shown.firsts} x="number" xShow=${second} show=${time} kind="dots" height=${200} legend />
      <${Chart} label="Requests per second" series=${["answered", "refused or failed"]} data=${shown.outcomes} x="number" xShow=${second} show=${rate} height=${200} legend />
      ${run.samples.length ? html`<${Chart} label="Running and waiting" series=${["running", "waiting"]} data=${[run.samples.map((each) => each.at_s), run.samples.map((each) => each.running), run.samples.map((each) => each.waiting)]} x="number" xShow=${second} show=${whole} height=${200} legend />` : null}
    </div>
    <${Table} label="By tier" rows=${shown.tiers} columns=${TIERS} />
    <details><summary>About the run</summary><dl class="pairs">${Object.entries(run.about).map(([name, own]) => html`<div><dt>${name}</dt><dd>${String(own)}</dd></div>`)}</dl></details>
  <//>`;
};

/** @typedef {{ tier: string, offered: number, good: number, failed: number, first50: number | null, first95: number | null, gap95: number | null }} TierFigures */
/** @type {import("../parts.js").Column<TierFigures>[]} */
const TIERS = [
  { title: "Tier", cell: (row) => html`<b>${row.tier}</b>` }, { title: "Requests", number: true, cell: (row) => whole(row.offered) },
  { title: "Good", number: true, cell: (row) => percent(row.good / row.offered) }, { title: "Refused or failed", number: true, cell: (row) => percent(row.failed / row.offered) },
  { title: "TTFT p50", number: true, cell: (row) => time(row.first50) }, { title: "TTFT p95", number: true, cell: (row) => time(row.first95) }, { title: "Token p95", number: true, cell: (row) => time(row.gap95) },
];

/** @param {Run} run */
const figures = (run) => {
  const { results } = run, answered = results.filter(isAnswered);
  const seconds = Math.max(Math.ceil(run.duration_s), 1), each = Array.from({ length: seconds }, (_, at) => at);
  const done = new Array(seconds).fill(0), bad = new Array(seconds).fill(0);
  for (const result of results) (isAnswered(result) ? done : bad)[Math.min(Math.floor(result.at_s), seconds - 1)]++;
  const timed = answered.filter((result) => result.first_token_s != null).sort((a, b) => a.at_s - b.at_s);
  const firsts = timed.map((result) => result.first_token_s), gaps = answered.map((result) => result.between_tokens_s);
  return {
    answered: answered.length, good: results.filter((result) => isGood(run, result)).length,
    tokens: answered.reduce((sum, result) => sum + result.completion_tokens, 0),
    first50: quantile(firsts, 0.5), first95: quantile(firsts, 0.95), gap50: quantile(gaps, 0.5), gap95: quantile(gaps, 0.95),
    firsts: [timed.map((result) => result.at_s), firsts], outcomes: [each, done, bad],
    tiers: [...new Set(results.map((result) => result.tier))].map((tier) => {
      const own = results.filter((result) => result.tier === tier), first = own.map((result) => result.first_token_s);
      return { tier, offered: own.length, good: own.filter((result) => isGood(run, result)).length, failed: own.filter((result) => !isAnswered(result)).length,
        first50: quantile(first, 0.5), first95: quantile(first, 0.95), gap95: quantile(own.map((result) => result.between_tokens_s), 0.95) };
    }),
  };
};
