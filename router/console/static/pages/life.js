// Where the time of one request went.
import { time } from "../format.js";
import { html } from "../html.js";

/** @typedef {import("../types").Span} Span */

const KINDS = /** @type {Record<string, string>} */ ({
  admission: "s1", queue: "s2", preprocessing: "s3", engine_queue: "s2", prefill: "s4", decode: "s5",
  postprocessing: "s3", send: "s1", triton: "s5",
});

/** @param {string} name */
export const stageName = (name) => name.replaceAll("_", " ");

/**
 * All stages in one bar, and what each took.
 * @param {{ stages: Span[] }} props
 */
export const LifeBar = ({ stages }) => {
  const whole = Math.max(stages.at(-1)?.end_ms ?? 0, 1e-3);
  const words = stages.map((each) => `${stageName(each.name)} ${time((each.end_ms - each.start_ms) / 1e3)}`);
  return html`<div class="life">
    <div class="life-bar" role="img" aria-label=${words.join(", ")}>
      ${stages.map((each) => html`<span class=${KINDS[each.name] ?? "s1"} title=${`${stageName(each.name)} ${time((each.end_ms - each.start_ms) / 1e3)}`}
        style=${{ width: `${(100 * (each.end_ms - each.start_ms)) / whole}%` }}></span>`)}
    </div>
    <ul aria-hidden="true">
      ${stages.filter((each) => each.end_ms - each.start_ms >= whole * 0.005).map((each) => html`<li><i class=${KINDS[each.name] ?? "s1"}></i>${stageName(each.name)} <b>${time((each.end_ms - each.start_ms) / 1e3)}</b></li>`)}
    </ul>
  </div>`;
};

/**
 * Each stage on a line of its own, with the engine's steps below.
 * @param {{ request: import("../types").Waterfall }} props
 */
export const Waterfall = ({ request }) => {
  const whole = Math.max(request.total_ms, 1e-3);
  /** @param {Span} each */
  const bar = (each) => ({
    left: `${(100 * each.start_ms) / whole}%`,
    width: `${Math.max((100 * (each.end_ms - each.start_ms)) / whole, 0.15)}%`,
  });
  /** @param {import("../types").Step} step */
  const about = (step) =>
    [step.name, step.tokens && `${step.tokens} tokens`, (step.count ?? 0) > 1 && `${step.count} steps`,
      (step.sequences ?? 0) > 1 && `${step.sequences} sequences, ${step.batch_tokens} tokens in the batch`]
      .filter(Boolean).join(", ");
  return html`<ol class="waterfall" aria-label="Stages of the request">
    ${request.stages.map((stage) => {
      const steps = request.steps.filter((each) => each.start_ms >= stage.start_ms && each.end_ms <= stage.end_ms);
      return html`<li>
        <span class="what">${stageName(stage.name)}</span>
        <span class="lane"><span class=${`bar ${KINDS[stage.name] ?? "s1"}`} style=${bar(stage)}></span>
          ${request.first_token_ms != null ? html`<span class="first" title=${`first token after ${time(request.first_token_ms / 1e3)}`} style=${{ left: `${(100 * request.first_token_ms) / whole}%` }}></span>` : null}</span>
        <span class="took">${time((stage.end_ms - stage.start_ms) / 1e3)}</span>
        ${steps.length ? html`<span class="what step">engine steps (${steps.length})</span>
          <span class="lane steps">${steps.map((each) => html`<span class=${`bar ${each.name === "paused" ? "paused" : "step"}`} title=${`${about(each)}: ${time((each.end_ms - each.start_ms) / 1e3)}`} style=${bar(each)}></span>`)}</span>
          <span class="took">${time(steps.reduce((sum, each) => sum + each.end_ms - each.start_ms, 0) / 1e3)}</span>` : null}
      </li>`;
    })}
  </ol>`;
};
