// What the tuner decided, and why.
import { get } from "../api.js";
import { ago } from "../format.js";
import { html } from "../html.js";
import { Card, Problem, useLoaded } from "../parts.js";

export const Tuner = () => {
  const { value, problem } = useLoaded(async () => (await get("/admin/tuning")).data, [], 10_000);
  /** @type {import("../types").Tuning[]} */
  const models = value ?? [];
  const said = models.flatMap((each) => [...each.engines, ...each.standing]);
  return html`<${Card} title="What the tuner decided, and why">
    <${Problem} problem=${problem} />
    ${said.length
      ? html`<ul class="said">${said.map((each) => html`<li><b>${each.model}@${each.version}</b> <span class="muted">${each.triton_model} · ${ago(each.at_s)}</span><br />${each.sentence}</li>`)}</ul>`
      : html`<p class="muted">None: without objectives nothing is tuned.</p>`}
  <//>`;
};
