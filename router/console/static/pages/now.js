// What the router does at this moment, once a second.
import { get } from "../api.js";
import { Chart } from "../chart.js";
import { bytes, percent, rate, span, time, whole } from "../format.js";
import { html } from "../html.js";
import { Badge, Card, Meter, Problem, Stat, Table, Waiting } from "../parts.js";
import { useEffect, useState } from "../vendor/hooks.js";
import { stageName } from "./life.js";
import { Tuner } from "./tuner.js";

/** @typedef {import("../types").Now} NowTold */
/** @typedef {import("../types").Point} Point */
/** @typedef {import("../types").NowRelease & { model: string }} Row */

const KEPT_S = 300;

/** @param {NowTold} now @returns {Row[]} */
const releasesOf = (now) => now.models.flatMap((each) => each.releases.map((release) => ({ model: each.model, ...release })));

/** @param {(number | null)[]} values */
const worst = (values) => {
  const known = values.filter((each) => each != null);
  return known.length ? Math.max(.../** @type {number[]} */ (known)) : null;
};

/** @param {NowTold} now @returns {Point} */
const pointOf = (now) => {
  const rows = releasesOf(now);
  /** @param {(row: Row) => number} value */
  const sum = (value) => rows.reduce((total, row) => total + value(row), 0);
  return {
    at_s: now.at_s,
    in_flight: sum((row) => row.in_flight),
    waiting: sum((row) => Object.values(row.waiting).reduce((a, b) => a + b, 0)),
    requests_per_s: sum((row) => row.requests_per_s),
    tokens_per_s: sum((row) => row.tokens_per_s),
    first_token_p95_s: worst(rows.map((row) => row.first_token_p95_s)),
    inter_token_p95_s: worst(rows.map((row) => row.inter_token_p95_s)),
  };
};

/** The stream ends every minute and comes again by itself; who may no longer look is signed out. */
const useNow = () => {
  const [now, setNow] = useState(/** @type {NowTold | null} */ (null));
  const [points, setPoints] = useState(/** @type {Point[]} */ ([]));
  const [problem, setProblem] = useState(/** @type {unknown} */ (null));
  useEffect(() => {
    /** @type {EventSource | undefined} */
    let source;
    let over = false;
    get("/admin/now").then((/** @type {NowTold} */ first) => {
      if (over) return;
      setNow(first);
      setPoints(first.history ?? []);
      source = new EventSource("/admin/now/stream");
      source.onmessage = (event) => {
        /** @type {NowTold} */
        const told = JSON.parse(event.data);
        setProblem(null);
        setNow(told);
        setPoints((before) => [...before.filter((each) => each.at_s > told.at_s - KEPT_S), pointOf(told)]);
      };
      source.onerror = () => {
        if (source?.readyState === EventSource.CLOSED) get("/admin/session").catch(() => 0);
        if (!navigator.onLine || source?.readyState === EventSource.CLOSED) setProblem("the router is unreachable; the figures are out of date");
      };
    }, setProblem);
    return () => {
      over = true;
      source?.close();
    };
  }, []);
  return { now, points, problem };
};

export const Now = () => {
  const { now, points, problem } = useNow();
  if (!now) return html`<${Waiting} problem=${problem} />`;
  const rows = releasesOf(now), last = pointOf(now), at = points.map((each) => each.at_s);
  const objectives = now.models.flatMap((each) => each.objectives.map((one) => ({ model: each.model, ...one })));
  /** @param {string} metric */
  const tightest = (metric) => {
    const limits = objectives.filter((each) => each.metric === metric).map((each) => each.objective_s ?? Infinity);
    return limits.length ? Math.min(...limits) : null;
  };
  const goodput = worst(now.models.map((each) => (each.goodput == null ? null : -each.goodput)));
  const [ttftLimit, gapLimit] = [tightest("first_token"), tightest("inter_token")];
  /** @param {number | null} value @param {number | null} limit */
  const tone = (value, limit) => (value != null && limit != null && value > limit ? "bad" : "");
  return html`<div class="title"><h1>Now</h1>
      <p class="muted">up ${span(now.router.up_s)} · router ${percent(now.router.cpu)} of a core, ${bytes(now.router.peak_memory_bytes)} · rates over ${Math.round(now.window_s)} s</p></div>
    <${Problem} problem=${problem} />
    <dl class="stats">
      <${Stat} name="Running" value=${whole(last.in_flight)} />
      <${Stat} name="Waiting" value=${whole(last.waiting)} tone=${last.waiting ? "warn" : ""} />
      <${Stat} name="Requests/s" value=${rate(last.requests_per_s)} />
      <${Stat} name="Tokens/s" value=${rate(last.tokens_per_s)} />
      <${Stat} name="First token, p95" value=${time(last.first_token_p95_s)} tone=${tone(last.first_token_p95_s, ttftLimit)} note=${ttftLimit == null ? "no objective" : `objective ${time(ttftLimit)}`} />
      <${Stat} name="Inter-token, p95" value=${time(last.inter_token_p95_s)} tone=${tone(last.inter_token_p95_s, gapLimit)} note=${gapLimit == null ? "no objective" : `objective ${time(gapLimit)}`} />
      <${Stat} name="Goodput" value=${percent(goodput == null ? null : -goodput)} note="within objectives" />
    </dl>
    <div class="grid plots">
      <${Card}><${Chart} label="Tokens per second" series=${["tokens/s"]} data=${[at, points.map((each) => each.tokens_per_s)]} show=${rate} /><//>
      <${Card}><${Chart} label="Running and waiting" series=${["running", "waiting"]} data=${[at, points.map((each) => each.in_flight), points.map((each) => each.waiting)]} show=${whole} top=${4} /><//>
      <${Card}><${Chart} label="First token, p95" series=${["first token"]} data=${[at, points.map((each) => each.first_token_p95_s)]} show=${time} limit=${ttftLimit} /><//>
      <${Card}><${Chart} label="Inter-token, p95" series=${["inter-token"]} data=${[at, points.map((each) => each.inter_token_p95_s)]} show=${time} limit=${gapLimit} /><//>
    </div>
    <${Card} title="Releases"><${Table} label="Releases now" rows=${rows} keyOf=${(/** @type {Row} */ row) => `${row.model}@${row.release}`} columns=${RELEASES} /><//>
    <div class="grid two">
      <${Card} title="Replicas"><${Table} label="Replicas" empty="No replicas." rows=${rows.flatMap((row) => row.replicas.map((each) => ({ of: `${row.model}@${row.release}`, ...each })))} columns=${REPLICAS} /><//>
      <${Card} title="Objectives" aside=${html`<a href="#/objectives">Set them</a>`}><${Table} label="Objectives" empty="No objectives are set." rows=${objectives} columns=${OBJECTIVES} /><//>
      <${Card} title="Where the time goes">${now.stages.length
        ? html`<ul class="bars">${now.stages.map((each) => html`<li><span>${stageName(each.stage)}</span><${Meter} label=${stageName(each.stage)} part=${each.part} /><b>${time(each.mean_s)}</b></li>`)}</ul>`
        : html`<p class="muted">No requests ended in this window.</p>`}<//>
      <${Card} title="Tenants"><${Table} label="Tenants now" empty="No tenants are active." rows=${now.tenants} columns=${TENANTS} /><//>
    </div>
    <div class="grid two">
      <${Tuner} />
      <${Card} title="Refused and failed"><${Table} label="Refused and failed" empty="None in this window." rows=${now.troubles} columns=${TROUBLES} /><//>
    </div>`;
};

/** @type {import("../parts.js").Column<Row>[]} */
const RELEASES = [
  { title: "Release", cell: (row) => html`<b class="one">${row.model}@${row.release}</b>` },
  { title: "Share", number: true, cell: (row) => percent(row.share) },
  { title: "Running", number: true, cell: (row) => whole(row.in_flight) },
  { title: "Waiting i/s/b", number: true, cell: (row) => ["interactive", "standard", "batch"].map((tier) => row.waiting[tier] ?? 0).join(" / ") },
  { title: "Requests/s", number: true, cell: (row) => rate(row.requests_per_s) },
  { title: "Read/s", number: true, cell: (row) => rate(row.prompt_tokens_per_s) },
  { title: "Written/s", number: true, cell: (row) => rate(row.tokens_per_s) },
  { title: "TTFT p50 / p95", number: true, cell: (row) => `${time(row.first_token_p50_s)} / ${time(row.first_token_p95_s)}` },
  { title: "Token p50 / p95", number: true, cell: (row) => `${time(row.inter_token_p50_s)} / ${time(row.inter_token_p95_s)}` },
  { title: "KV reserved", cell: (row) => html`<${Meter} part=${row.kv} label="KV cache reserved" tone=${(row.kv ?? 0) > 0.9 ? "bad" : ""} />` },
  { title: "Drain", number: true, cell: (row) => time(row.drain_s) },
];
/** @type {import("../parts.js").Column<import("../types").Replica & { of: string }>[]} */
const REPLICAS = [
  { title: "Replica", cell: (row) => html`<b>${row.name}</b> <span class="muted">${row.of}</span>` },
  { title: "Health", cell: (row) => html`<${Badge} tone=${row.up ? "good" : "bad"}>${row.draining ? "draining" : row.up ? "up" : "down"}<//>${row.revivals ? html` <span class="muted">revived ${row.revivals}×</span>` : null}` },
  { title: "Batch", number: true, cell: (row) => (row.running == null ? "–" : `${row.running} / ${row.batch_limit}`) },
  { title: "Busy", cell: (row) => html`<${Meter} part=${row.busy} label="busy" />` },
  { title: "KV used", cell: (row) => html`<${Meter} part=${row.kv} label="KV cache used" tone=${(row.kv ?? 0) > 0.9 ? "bad" : ""} />` },
];
/** @type {import("../parts.js").Column<import("../types").Standing & { model: string }>[]} */
const OBJECTIVES = [
  { title: "Model", cell: (row) => html`<b>${row.model}</b> <span class="muted">${row.tier}</span>` },
  { title: "Measure", cell: (row) => row.metric.replace("_", " ") },
  { title: "p95", number: true, cell: (row) => time(row.p95_s) },
  { title: "Objective", number: true, cell: (row) => time(row.objective_s) },
  { title: "Kept by", number: true, cell: (row) => percent(row.attained) },
  { title: "", cell: (row) => html`<${Badge} tone=${row.verdict === "kept" ? "good" : row.verdict === "missed" ? "bad" : ""}>${row.verdict}<//>` },
];
/** @type {import("../parts.js").Column<NowTold["tenants"][number]>[]} */
const TENANTS = [
  { title: "Tenant", cell: (row) => html`${row.tenant} ${row.noisy ? html`<${Badge} tone="warn">noisy: ${row.noisy.toFixed(1)}× its share<//>` : null}` },
  { title: "Running", number: true, cell: (row) => whole(row.in_flight) },
  { title: "Requests/s", number: true, cell: (row) => rate(row.requests_per_s) },
  { title: "Tokens/s", number: true, cell: (row) => rate(row.tokens_per_s) },
];
/** @type {import("../parts.js").Column<NowTold["troubles"][number]>[]} */
const TROUBLES = [
  { title: "Status", cell: (row) => html`<${Badge} tone="bad">${row.status}<//>` },
  { title: "At", cell: (row) => html`<code>${row.route}</code>` },
  { title: "Count", number: true, cell: (row) => whole(row.count) },
];
