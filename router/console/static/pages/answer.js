// One answer as it comes, and what is known of it afterwards.
import { ApiError, get, path, stream } from "../api.js";
import { Chart } from "../chart.js";
import { dollars, rate, time, whole } from "../format.js";
import { html } from "../html.js";
import { Badge, Field } from "../parts.js";
import { useState } from "../vendor/hooks.js";
import { LifeBar } from "./life.js";

/**
 * @typedef {{ state: "waiting" | "streaming" | "done" | "failed" | "stopped", text: string, thoughts: string,
 *   calls: { id: string, name: string, arguments: string }[], times: number[], tokens: number[], firstS: number | null,
 *   tookS: number | null, usage: any, finish: string, release: string, requestId: string, problem: string,
 *   life: import("../types").Waterfall | null, body: object }} Answer
 */

/** @param {number} bytes */
const hex = (bytes) => Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (each) => each.toString(16).padStart(2, "0")).join("");

/** @param {object} body @returns {Answer} */
export const emptyAnswer = (body) => ({
  state: "waiting", text: "", thoughts: "", calls: [], times: [], tokens: [], firstS: null, tookS: null, usage: null,
  finish: "", release: "", requestId: "", problem: "", life: null, body,
});

/**
 * Asks, and tells of every piece; the times are those that this browser saw.
 * @param {object} body
 * @param {AbortSignal} signal
 * @param {(answer: Answer) => void} changed
 * @returns {Promise<Answer>}
 */
export const ask = async (body, signal, changed) => {
  const answer = emptyAnswer(body);
  const began = performance.now();
  let last = began, counted = 0;
  const more = { traceparent: `00-${hex(16)}-${hex(8)}-01`, tracestate: "inflight=steps" };
  const sent = { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  try {
    await stream("/v1/chat/completions", sent, more, signal, (response) => {
      answer.requestId = response.headers.get("x-request-id") ?? "";
      answer.release = response.headers.get("x-inflight-release") ?? "";
      answer.state = "streaming";
    }, (event) => {
      const now = performance.now(), choice = event.choices?.[0], delta = choice?.delta ?? {};
      answer.usage = event.usage ?? answer.usage;
      const tokens = (event.usage?.completion_tokens ?? counted) - counted;
      if (tokens > 0) {
        answer.firstS ??= (now - began) / 1e3;
        for (let each = 0; each < tokens; each++) {
          answer.times.push((now - last) / tokens);
          answer.tokens.push(answer.tokens.length + 1);
        }
        counted += tokens;
        last = now;
      }
      answer.text += delta.content ?? "";
      answer.thoughts += delta.reasoning_content ?? "";
      for (const call of delta.tool_calls ?? [])
        answer.calls.push({ id: call.id, name: call.function?.name ?? "", arguments: call.function?.arguments ?? "" });
      answer.finish = choice?.finish_reason ?? answer.finish;
      changed({ ...answer });
    });
    answer.state = "done";
  } catch (error) {
    answer.state = signal.aborted ? "stopped" : "failed";
    if (!signal.aborted) answer.problem = error instanceof ApiError ? error.message : "the connection was lost";
  }
  answer.tookS = (performance.now() - began) / 1e3;
  changed({ ...answer });
  if (answer.requestId) {
    answer.life = await get(path`/v1/requests/${answer.requestId}`).catch(() => null);
    changed({ ...answer });
  }
  return { ...answer };
};

/** `give` hands back what tools found, where the chat can go on with it. @param {{ answer: Answer, showCode: (body: object) => void, give: ((results: string[]) => void) | null }} props */
export const AnswerView = ({ answer, showCode, give }) => html`
  <article class="answer" aria-busy=${answer.state === "waiting" || answer.state === "streaming"}>
    ${answer.thoughts ? html`<details class="thoughts"><summary>Thoughts</summary><p>${answer.thoughts}</p></details>` : null}
    ${answer.text ? html`<p class="said">${answer.text}</p>` : null}
    ${answer.calls.map((call) => html`<div class="call"><${Badge}>tool call<//> <code>${call.name}</code><pre class="code">${pretty(call.arguments)}</pre></div>`)}
    ${give && answer.state === "done" && answer.calls.length ? html`<${Results} calls=${answer.calls} give=${give} />` : null}
    ${answer.state === "waiting" ? html`<p class="muted" role="status">Waiting for the first token…</p>` : null}
    ${answer.problem ? html`<p class="problem" role="alert">${answer.problem}</p>` : null}
    ${answer.state === "stopped" ? html`<p class="muted">Stopped.</p>` : null}
    ${answer.tookS != null ? html`<${Facts} answer=${answer} showCode=${showCode} />` : null}
  </article>`;

/** @param {{ calls: Answer["calls"], give: (results: string[]) => void }} props */
const Results = ({ calls, give }) => {
  const [given, setGiven] = useState(calls.map(() => ""));
  return html`<div class="results">${calls.map((call, at) => html`<${Field} label=${`What ${call.name} found`} wide>
      <textarea rows="2" class="mono" value=${given[at]} onInput=${(/** @type {any} */ event) => setGiven(given.map((each, other) => (other === at ? event.target.value : each)))}></textarea><//>`)}
    <button type="button" disabled=${given.some((each) => !each.trim())} onClick=${() => give(given)}>Send the results</button></div>`;
};

/** @param {string} text */
const pretty = (text) => {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
};

/** @param {{ answer: Answer, showCode: (body: object) => void }} props */
const Facts = ({ answer, showCode }) => {
  const { usage, life } = answer;
  const tokens = usage?.completion_tokens ?? 0;
  const decodeS = answer.firstS == null || answer.tookS == null ? null : answer.tookS - answer.firstS;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? life?.cached_tokens;
  const facts = /** @type {[string, unknown][]} */ ([
    ["first token", time(answer.firstS)],
    ["tokens/s", rate(decodeS && tokens > 1 ? (tokens - 1) / decodeS : null)],
    ["prompt", usage ? `${whole(usage.prompt_tokens)}${cached == null ? "" : ` (${whole(cached)} cached)`}` : "–"],
    ["answer", usage ? whole(tokens) : "–"],
    ["finish", answer.finish || "–"],
    ["release", answer.release || "–"],
    ["replica", life?.replica ?? "–"],
    ["price", life ? dollars(life.cost_microdollars) : "–"],
  ]);
  return html`<div class="facts">
    <dl>${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${life?.stages.length ? html`<${LifeBar} stages=${life.stages} />` : null}
    ${answer.times.length > 2 ? html`<${Chart} label="Time of each token" series=${["ms"]} data=${[answer.tokens.slice(1), answer.times.slice(1)]}
      x="number" xShow=${(/** @type {number} */ at) => String(at)} kind="bars" height=${84}
      show=${(/** @type {number | null} */ ms) => (ms == null ? "–" : `${ms.toFixed(ms < 10 ? 1 : 0)} ms`)} />` : null}
    <div class="row small">
      ${answer.requestId ? html`<a href=${`#/requests/${answer.requestId}`}>${answer.requestId}</a>` : null}
      ${life?.trace_id ? html`<span class="muted">trace <code>${life.trace_id}</code></span>` : null}
      <button type="button" class="quiet" onClick=${() => showCode(answer.body)}>As curl / Python</button>
    </div>
  </div>`;
};
