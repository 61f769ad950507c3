// Faults on purpose: what each did to the requests around it.
import { Chart } from "../chart.js";
import { csv, download, span, time, whole } from "../format.js";
import { html } from "../html.js";
import { Badge, Card, Choice, Stat, Table } from "../parts.js";
import { useMemo, useState } from "../vendor/hooks.js";

/**
 * @typedef {{ at_s: number, took_s: number | null, outcome: string, status: number, tenant: string, tokens: number, error: string }} Sent
 * @typedef {{ number: number, name: string, what: string, victim: string, struck_s: number, over_s: number, recovered_s: number,
 *   longest_silence_s: number, violations: string[], requests: Sent[], begins_s: number }} Episode
 * @typedef {{ name: string, about: Record<string, string>, skipped: Record<string, string>, episodes: Episode[] }} ChaosRun
 */

const OUTCOMES = ["whole", "refused", "cut", "left"];
const ALL = "all";

/** Episodes follow each other, as they came. @param {any} told @returns {ChaosRun} */
export const readChaos = (told) => {
  if (told.version !== 1 || !Array.isArray(told.columns) || !Array.isArray(told.episodes)) throw new Error("not a chaos.json of `inflight chaos`, version 1");
  let begins_s = 0;
  const episodes = told.episodes.map((/** @type {any} */ each) => {
    const requests = each.requests.map((/** @type {any[]} */ row) => Object.fromEntries(told.columns.map((/** @type {string} */ name, /** @type {number} */ at) => [name, row[at]])));
    const found = { ...each, requests, begins_s };
    begins_s += each.recovered_s;
    return found;
  });
  return { name: String(told.name), about: told.about ?? {}, skipped: told.skipped ?? {}, episodes };
};

/** @param {Episode} episode @param {string} outcome */
const count = (episode, outcome) => episode.requests.filter((each) => each.outcome === outcome).length;

/** One row of times for each outcome, on one axis. @param {Episode[]} episodes */
const dots = (episodes) => {
  const all = episodes.flatMap((episode) => episode.requests.map((each) => ({ ...each, at_s: episode.begins_s + each.at_s }))).sort((a, b) => a.at_s - b.at_s);
  const known = OUTCOMES.filter((outcome) => all.some((each) => each.outcome === outcome));
  return { known, data: [all.map((each) => each.at_s), ...known.map((outcome) => all.map((each) => (each.outcome === outcome ? each.took_s ?? 0 : null)))] };
};

/** @param {{ run: ChaosRun }} props */
export const ChaosView = ({ run }) => {
  const [name, setName] = useState(ALL);
  const names = [...new Set(run.episodes.map((each) => each.name))].sort();
  const shown = useMemo(() => run.episodes.filter((each) => name === ALL || each.name === name), [run, name]);
  const drawn = useMemo(() => dots(shown), [shown]);
  const bands = useMemo(() => shown.map((each) => ({ from: each.begins_s + each.struck_s, to: each.begins_s + each.over_s, bad: each.violations.length > 0 })), [shown]);
  const requests = shown.reduce((sum, each) => sum + each.requests.length, 0);
  const violations = shown.reduce((sum, each) => sum + each.violations.length, 0);
  /** @param {string} outcome */
  const total = (outcome) => whole(shown.reduce((sum, each) => sum + count(each, outcome), 0));
  const save = () => download("chaos.csv", csv(["episode", "fault", "victim", "at_s", "took_s", "outcome", "status", "tenant", "tokens", "error"],
    shown.flatMap((each) => each.requests.map((sent) => [each.number, each.name, each.victim, sent.at_s, sent.took_s, sent.outcome, sent.status, sent.tenant, sent.tokens, sent.error]))));
  /** @param {number} at */
  const second = (at) => (at < 120 ? `${Math.round(at)} s` : span(at));
  return html`<${Card} title="Injected faults" aside=${html`<span class="muted">${run.about.machine ?? ""}</span>
      <${Choice} label="Fault" value=${name} options=${[[ALL, "all faults"], ...names]} change=${setName} /><button type="button" onClick=${save}>CSV</button>`}>
    <p class="muted"><code>${run.name}</code></p>
    <dl class="stats"><${Stat} name="Faults" value=${whole(shown.length)} /><${Stat} name="Violations" value=${whole(violations)} tone=${violations ? "bad" : ""} /><${Stat} name="Requests" value=${whole(requests)} />
      <${Stat} name="Whole" value=${total("whole")} note="same as without faults" /><${Stat} name="Refused" value=${total("refused")} /><${Stat} name="Cut" value=${total("cut")} note="with their connection" />
      <${Stat} name="Longest recovery" value=${time(Math.max(0, ...shown.map((each) => each.recovered_s - each.over_s)))} /></dl>
    <${Chart} label="Duration of each request; faults are shaded" series=${drawn.known} data=${drawn.data} bands=${bands} x="number" xShow=${second} show=${time} kind="dots" height=${240} legend />
    <${Table} label="Faults" rows=${shown} columns=${FAULTS} />
    ${Object.keys(run.skipped).length ? html`<details><summary>Left out</summary><dl class="pairs">${Object.entries(run.skipped).map(([fault, why]) => html`<div><dt>${fault}</dt><dd>${why}</dd></div>`)}</dl></details>` : null}<//>`;
};

/** @type {import("../parts.js").Column<Episode>[]} */
const FAULTS = [
  { title: "", number: true, cell: (row) => row.number },
  { title: "Fault", cell: (row) => html`<b>${row.name}</b>${row.violations.length ? html` <${Badge} tone="bad">${row.violations.length} violations<//>${row.violations.slice(0, 5).map((each) => html`<p class="problem">${each}</p>`)}` : null}` },
  { title: "Victim", cell: (row) => row.victim },
  { title: "Requests", number: true, cell: (row) => whole(row.requests.length) },
  { title: "Whole", number: true, cell: (row) => whole(count(row, "whole")) },
  { title: "Refused", number: true, cell: (row) => whole(count(row, "refused")) },
  { title: "Cut", number: true, cell: (row) => whole(count(row, "cut")) },
  { title: "Held", number: true, cell: (row) => time(row.over_s - row.struck_s) },
  { title: "Recovered after", number: true, cell: (row) => time(Math.max(0, row.recovered_s - row.over_s)) },
  { title: "Longest silence", number: true, cell: (row) => time(row.longest_silence_s) },
];
