// Releases of each model: who answers, what is being rolled out, and what happened.
import { call, get, may, path } from "../api.js";
import { ago, bytes, moment, percent, span, time, whole } from "../format.js";
import { html } from "../html.js";
import { Badge, Button, Card, Choice, Confirm, Dialog, Field, Problem, Table, useLoaded, Waiting } from "../parts.js";
import { useState } from "../vendor/hooks.js";
import { AddRelease, Additions } from "./additions.js";

/** @typedef {import("../types").Release} Release */
/** @typedef {import("../types").ReleasedModel} ReleasedModel */
/** @typedef {import("../types").Rollout} Rollout */

/** @param {{ rest: string[] }} props */
export const Releases = ({ rest }) => {
  const { value, problem, again } = useLoaded(async () => {
    /** @type {Release[]} */
    const all = (await get("/admin/releases")).data;
    return [...new Set(all.filter((each) => each.state !== "gone").map((each) => each.model))];
  }, []);
  if (!value) return html`<${Waiting} problem=${problem} />`;
  const model = value.includes(rest[0]) ? rest[0] : value[0];
  if (!model) return html`<h1>Releases</h1><p class="muted">There are no releases.</p>`;
  return html`<div class="title"><h1>Releases</h1>
      ${value.length > 1 ? html`<${Choice} label="Model" value=${model} options=${value} change=${(/** @type {string} */ name) => { location.hash = `#/releases/${encodeURIComponent(name)}`; }} />` : html`<p class="muted">${model}</p>`}</div>
    <${ModelReleases} key=${model} model=${model} changed=${again} />`;
};

/** @param {{ model: string, changed: () => void }} props */
const ModelReleases = ({ model, changed }) => {
  const { value, problem, again } = useLoaded(async () => {
    const [found, events, rollouts] = await Promise.all([
      get(path`/admin/releases/${model}`),
      get(path`/admin/releases/${model}/events?limit=50`),
      get(path`/admin/releases/${model}/rollouts?limit=20`),
    ]);
    return {
      model: /** @type {ReleasedModel} */ (found),
      events: /** @type {import("../types").ReleaseEvent[]} */ (events.data),
      rollouts: /** @type {Rollout[]} */ (rollouts.data),
    };
  }, [model], 2000);
  const [asking, setAsking] = useState(/** @type {{ what: string, release?: Release } | null} */ (null));
  const [turn, setTurn] = useState(0);
  if (!value) return html`<${Waiting} problem=${problem} />`;
  const found = value.model, rollout = found.rollout, writes = may("release.write");
  /** @param {string} what @param {object} [body] */
  const act = async (what, body = {}) => {
    await call("POST", `${path`/admin/releases/${model}`}/${what}`, body);
    await again();
    changed();
  };
  const close = () => setAsking(null);
  return html`
    <${Problem} problem=${problem} />
    ${rollout ? html`<${Canary} rollout=${rollout} act=${act} ask=${(/** @type {string} */ what) => setAsking({ what })} writes=${writes} />` : null}
    <${Card} title="Releases" aside=${html`<span class="muted">sticky by ${found.split?.sticky ?? "nothing"}</span>
      ${writes ? html`<button type="button" class="primary" onClick=${() => setAsking({ what: "add" })}>Add a release…</button>` : null}`}>
      <${Table} label=${`Releases of ${model}`} rows=${found.releases} keyOf=${(/** @type {Release} */ each) => each.release}
        columns=${columns(writes, rollout, found, (what, release) => setAsking({ what, release }), act)} />
    <//>
    <${Additions} turn=${turn} done=${changed} />
    <${Diff} releases=${found.releases} model=${model} />
    <${Timeline} events=${value.events} rollouts=${value.rollouts} />
    ${asking?.what === "add" ? html`<${AddRelease} model=${model} close=${close} done=${() => setTurn(turn + 1)} />` : null}
    ${asking?.what === "canary" && asking.release ? html`<${NewCanary} release=${asking.release} close=${close} act=${act} />` : null}
    ${asking?.what === "promote" ? html`<${Confirm} title=${`Promote ${asking.release?.release ?? `${model}@${rollout?.canary}`}`} verb="Promote" tone="primary" reason close=${close}
      act=${(/** @type {string} */ reason) => act("promote", asking.release ? { version: asking.release.version, reason } : { reason })}><p>It gets all requests immediately.</p><//>` : null}
    ${asking?.what === "rollback" ? html`<${Confirm} title=${`Roll ${model} back`} verb="Roll back" reason close=${close} act=${(/** @type {string} */ reason) => act("rollback", { reason })}>
      <p>${rollout ? `All requests go to the stable release, ${model}@${rollout.stable}.` : `The standby, ${model}@${found.split?.standby}, takes over.`}</p><//>` : null}`;
};

/** @param {Release} release */
const tone = (release) => (release.state === "ready" ? "good" : release.state === "failed" ? "bad" : release.state === "loading" ? "warn" : "");

const REST = ["ready", "added", "unloaded"]; // from these a canary begins: it is loaded where it is not

/**
 * @param {boolean} writes @param {Rollout | null} rollout @param {ReleasedModel} found
 * @param {(what: string, release?: Release) => void} ask @param {(what: string) => Promise<void>} act
 * @returns {import("../parts.js").Column<Release>[]}
 */
const columns = (writes, rollout, found, ask, act) => [
  { title: "Release", cell: (row) => html`<b class="one">${row.release}</b>` },
  { title: "State", cell: (row) => html`<${Badge} tone=${tone(row)}>${row.state}<//>${row.reason && row.state !== "ready" ? html`<br /><span class="muted">${row.reason}</span>` : null}` },
  { title: "Role", cell: (row) => (row.role ? html`<${Badge} tone=${row.role === "canary" ? "warn" : row.role === "stable" ? "accent" : ""}>${row.role}<//>` : "") },
  { title: "Share", number: true, cell: (row) => percent(row.share) },
  { title: "Up", number: true, cell: (row) => (row.replicas == null ? "–" : `${row.replicas_up}/${row.replicas}`) },
  { title: "Since", cell: (row) => ago(row.since_s) },
  { title: "Notes", cell: (row) => row.notes },
  { title: "", cell: (row) => (writes ? html`<span class="row">
      ${found.split && REST.includes(row.state) && !row.share && !rollout && row.role !== "stable" ? html`<button type="button" onClick=${() => ask("canary", row)}>Canary…</button>` : null}
      ${(row.state === "ready" || !found.split) && row.share < 1 && row.role !== "stable" ? html`<button type="button" onClick=${() => ask("promote", row)}>Promote…</button>` : null}
      ${row.role === "stable" && !rollout && found.split?.standby != null ? html`<button type="button" onClick=${() => ask("rollback")}>Roll back…</button>` : null}
      ${!row.wanted ? html`<${Button} act=${() => act(path`versions/${row.version}/load`)}>Load<//>` : null}
      ${row.wanted && !row.share && row.role === "" ? html`<${Button} act=${() => act(path`versions/${row.version}/unload`)}>Unload<//>` : null}
    </span>` : null) },
];

/** @param {string} words */
const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");

/** @param {{ rollout: Rollout, act: (what: string) => Promise<void>, ask: (what: string) => void, writes: boolean }} props */
const Canary = ({ rollout, act, ask, writes }) => {
  const { plan, progress, figures } = rollout, paused = rollout.state === "paused";
  const gates = figures.gates ?? [];
  return html`<${Card} class="canary" title=${html`Canary ${rollout.model}@${rollout.canary} <${Badge} tone=${paused ? "warn" : "accent"}>${rollout.state}<//>`}
    aside=${writes ? html`<${Button} act=${() => act(paused ? "resume" : "pause")}>${paused ? "Resume" : "Pause"}<//>
      <button type="button" onClick=${() => ask("promote")}>Promote…</button>
      <button type="button" class="danger" onClick=${() => ask("rollback")}>Roll back…</button>` : null}>
    <ol class="steps" aria-label="Steps of the rollout">
      <li class=${progress.step < 0 ? "here" : "done"}>before traffic</li>
      ${plan.weights.map((weight, at) => html`<li class=${at < progress.step ? "done" : at === progress.step ? "here" : ""} aria-current=${at === progress.step ? "step" : undefined}>${percent(weight)}</li>`)}
    </ol>
    <p>${sentence(rollout.reason || "no measurements yet")}
      <span class="muted"> Since ${span(Math.max(Date.now() / 1e3 - progress.step_began_s, 0))} in this step, which lasts ${span(plan.min_duration_s)} and ${whole(plan.min_requests)} requests at least.</span></p>
    ${figures.before_traffic?.line ? html`<p class="muted">${figures.before_traffic.line}</p>` : null}
    ${figures.canary && figures.stable ? html`<${Table} label="Arms" rows=${[{ role: "canary", ...figures.canary }, { role: "stable", ...figures.stable }]} columns=${ARMS} />` : null}
    ${gates.length ? html`<ul class="gates" aria-label="Gates">${gates.map((gate) => html`<li class=${GATES[gate.shown] ?? ""}>
        <div class="gate-head"><b>${gate.gate}</b><${Badge} tone=${GATES[gate.shown] ?? ""}>${gate.shown}<//></div>
        <div class="evidence" role="img" aria-label=${`evidence against ${percent(gate.against)}, for ${percent(gate.within)}`}>
          <span class="against" style=${{ width: `${50 * Math.min(gate.against, 1)}%` }}></span>
          <span class="within" style=${{ width: `${50 * Math.min(gate.within ?? 0, 1)}%` }}></span></div>
        <small>${gate.figures}${gate.allowed ? html`; allowed: ${gate.allowed}` : null}${gate.more_requests ? html`; about ${whole(gate.more_requests)} more requests` : null}</small>
      </li>`)}</ul>` : html`<p class="muted">Its gates appear here when requests have been compared.</p>`}
  <//>`;
};

const GATES = /** @type {Record<string, string>} */ ({ within: "good", outside: "bad", "not yet known": "warn" });
/** @type {import("../parts.js").Column<import("../types").Arm & { role: string }>[]} */
const ARMS = [
  { title: "Arm", cell: (row) => html`<b>${row.role}</b> @${row.version}` },
  { title: "Requests", number: true, cell: (row) => whole(row.errors.total) },
  { title: "In this step", number: true, cell: (row) => whole(row.step_requests) },
  { title: "Errors", number: true, cell: (row) => whole(row.errors.hits) },
  { title: "Refused", number: true, cell: (row) => whole(row.refusals.hits) },
  { title: "First token", number: true, cell: (row) => time(row.first_token_s) },
  { title: "Between tokens", number: true, cell: (row) => time(row.between_tokens_s) },
  { title: "Tokens", number: true, cell: (row) => whole(row.tokens) },
];

/** @param {{ release: Release, close: () => void, act: (what: string, body: object) => Promise<void> }} props */
const NewCanary = ({ release, close, act }) => {
  const [weights, setWeights] = useState("1, 5, 25, 100");
  const [requests, setRequests] = useState("20");
  const [seconds, setSeconds] = useState("60");
  const [slower, setSlower] = useState("");
  const begin = async () => {
    const parts = weights.split(/[,\s]+/).filter(Boolean).map((each) => Number(each) / 100);
    await act("canary", { version: release.version, weights: parts, min_requests: Number(requests), min_duration_s: Number(seconds), ...(slower.trim() ? { accept_slower: Number(slower) } : {}) });
    close();
  };
  /** @param {(value: string) => void} set */
  const into = (set) => (/** @type {any} */ event) => set(event.target.value);
  return html`<${Dialog} title=${`Roll out ${release.release}`} close=${close}>
    <div class="fields">
      <${Field} label="Steps, % of the traffic" wide><input value=${weights} onInput=${into(setWeights)} /><//>
      <${Field} label="Requests each, at least"><input inputmode="numeric" value=${requests} onInput=${into(setRequests)} /><//>
      <${Field} label="Seconds each, at least"><input inputmode="numeric" value=${seconds} onInput=${into(setSeconds)} /><//>
      <${Field} label="Times as slow, at most"><input inputmode="decimal" placeholder="as configured" value=${slower} onInput=${into(setSlower)} /><//>
    </div>
    <p class="muted">It is compared with the stable release at every step, and rolled back when it is shown to be worse.</p>
    <div class="row end"><button type="button" onClick=${close}>Cancel</button><${Button} tone="primary" act=${begin}>Begin<//></div>
  <//>`;
};

/** @param {{ releases: Release[], model: string }} props */
const Diff = ({ releases, model }) => {
  const [pair, setPair] = useState(/** @type {[string, string]} */ (["", ""]));
  const versions = releases.map((each) => String(each.version));
  const { value, problem } = useLoaded(
    () => Promise.all(pair.map((each) => (each ? get(path`/admin/releases/${model}/versions/${each}`) : Promise.resolve(null)))),
    pair,
  );
  if (versions.length < 2) return null;
  const [left, right] = /** @type {(import("../types").ReleaseDetail | null)[]} */ (value ?? [null, null]);
  /** @param {import("../types").ReleaseDetail} each */
  const facts = (each) => ({
    "weights (sha256)": each.weights_sha256.slice(0, 16), "tokenizer (sha256)": each.tokenizer_sha256.slice(0, 16),
    size: bytes(each.file_bytes), ...Object.fromEntries(Object.entries(each.parameters).map(([name, own]) => [`parameter ${name}`, own])),
    ...Object.fromEntries(Object.entries(each.needs).map(([name, own]) => [`needs ${name}`, JSON.stringify(own)])),
    ...Object.fromEntries(Object.entries(each.profile ?? {}).map(([name, own]) => [`measured ${name}`, own.toPrecision(3)])),
  });
  const sides = left && right ? [facts(left), facts(right)] : [{}, {}];
  const rows = [...new Set(sides.flatMap((each) => Object.keys(each)))]
    .map((name) => ({ name, values: sides.map((each) => /** @type {Record<string, string>} */ (each)[name] ?? "–") }))
    .filter((each) => each.values[0] !== each.values[1]);
  const options = /** @type {[string, string][]} */ ([["", "choose"], ...versions.map((each) => [each, `${model}@${each}`])]);
  return html`<${Card} title="Compare two releases">
    <div class="row"><${Choice} label="One release" value=${pair[0]} options=${options} change=${(/** @type {string} */ each) => setPair([each, pair[1]])} />
      <span class="muted">and</span><${Choice} label="Another release" value=${pair[1]} options=${options} change=${(/** @type {string} */ each) => setPair([pair[0], each])} /></div>
    <${Problem} problem=${problem} />
    ${left && right ? html`<${Table} label="Differences" rows=${rows} empty="No differences."
      columns=${[{ title: "", cell: (/** @type {any} */ row) => row.name }, { title: left.release, cell: (/** @type {any} */ row) => html`<code>${row.values[0]}</code>` }, { title: right.release, cell: (/** @type {any} */ row) => html`<code>${row.values[1]}</code>` }]} />` : null}
  <//>`;
};

/** @param {{ events: import("../types").ReleaseEvent[], rollouts: Rollout[] }} props */
const Timeline = ({ events, rollouts }) => {
  const ended = rollouts.filter((each) => each.ended_s != null).map((each) => ({
    at_s: /** @type {number} */ (each.ended_s), model: each.model, version: each.canary,
    what: `rollout ${each.state}`, reason: each.reason,
  }));
  const all = [...events, ...ended].sort((a, b) => b.at_s - a.at_s).slice(0, 50);
  return html`<${Card} title="History">${all.length
    ? html`<ol class="timeline">${all.map((each) => html`<li class=${/rolled back|rollback|fail/.test(each.what) ? "bad" : /promote/.test(each.what) ? "good" : ""}>
        <time title=${moment(each.at_s)}>${ago(each.at_s)}</time>
        <div><b>${each.what}</b> ${each.version == null ? each.model : `${each.model}@${each.version}`}${each.reason ? html`<p class="muted">${each.reason}</p>` : null}</div>
      </li>`)}</ol>`
    : html`<p class="muted">No events yet.</p>`}<//>`;
};
