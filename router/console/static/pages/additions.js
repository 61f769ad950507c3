// A release is added from a place that the server knows, and watched until it is there.
import { call, get, path } from "../api.js";
import { ago } from "../format.js";
import { html } from "../html.js";
import { Badge, Button, Card, Choice, Dialog, Field, Problem, useLoaded, Waiting } from "../parts.js";
import { useRef, useState } from "../vendor/hooks.js";

/** @typedef {import("../types").Addition} Addition */

const TONES = /** @type {Record<string, string>} */ ({ running: "accent", added: "good", failed: "bad", stopped: "warn" });
const SHOWN_S = 3600;

/** Those of the last hour; `done` is told when one more is there. @param {{ turn: number, done: () => void }} props */
export const Additions = ({ turn, done }) => {
  const was = useRef("");
  const { value, problem, again } = useLoaded(async () => {
    /** @type {Addition[]} */
    const found = (await get("/admin/additions")).data;
    const states = found.map((each) => each.id + each.state).join();
    if (states !== was.current) done();
    was.current = states;
    return found.filter((each) => each.state === "running" || Date.now() / 1e3 - each.began_s < SHOWN_S);
  }, [turn], 1500);
  if (!value?.length) return html`<${Problem} problem=${problem} />`;
  return html`<${Card} title="Releases being added"><ul class="jobs">${value.map((each) => html`<li key=${each.id}>
    <div class="row"><b>${each.release ?? each.model}</b><${Badge} tone=${TONES[each.state]}>${each.state}<//>
      <span class="muted">from ${each.source} · ${ago(each.began_s)}</span>
      ${each.state === "running" ? html`<${Button} tone="danger" act=${async () => { await call("DELETE", path`/admin/additions/${each.id}`); await again(); }}>Stop<//>` : null}</div>
    <p class=${each.state === "failed" ? "problem" : "muted small"}>${each.reason || each.said.at(-1) || "It begins…"}</p></li>`)}</ul><//>`;
};

/** Raises what is wrong with a line. @param {string} text */
const parametersOf = (text) => Object.fromEntries(text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
  const [name, ...value] = line.split("=");
  if (!value.length) throw new Error(`${line}: expected NAME=VALUE`);
  return [name.trim(), value.join("=").trim()];
}));

/** @param {{ model: string, close: () => void, done: () => void }} props */
export const AddRelease = ({ model, close, done }) => {
  const { value, problem } = useLoaded(() => get("/admin/release-sources"), []);
  const [given, setGiven] = useState({ model, source: "", parameters: "", notes: "" });
  /** @param {keyof typeof given} name */
  const input = (name) => ({ value: given[name], onInput: (/** @type {any} */ event) => setGiven({ ...given, [name]: event.target.value }) });
  /** @type {{ name: string, what: string, release: string | null }[]} */
  const sources = value?.data ?? [];
  const source = given.source || sources[0]?.name;
  const add = async () => {
    await call("POST", "/admin/releases", { model: given.model.trim(), source, parameters: parametersOf(given.parameters), notes: given.notes.trim() });
    done();
    close();
  };
  const body = () => {
    if (!value.can_add || !sources.length)
      return html`<p>${value.can_add ? "There is no source on the server to add one from." : "This router has no access to the files of releases."} Add it where they are:</p>
        <pre class="code" tabindex="0">inflight release add ${model} PATH</pre>`;
    return html`<div class="fields">
        <${Field} label="From" wide hint="checkpoints of releases, and the files in [router] release_sources"><${Choice} value=${source} change=${(/** @type {string} */ name) => setGiven({ ...given, source: name })}
          options=${sources.map((each) => [each.name, each.release ? `the files of ${each.name}` : `${each.name} (${each.what})`])} /><//>
        <${Field} label="As a release of the model" wide><input maxlength="64" ...${input("model")} /><//>
        <${Field} label="Engine parameters" wide hint="one per line: inflight_precision=int4"><textarea class="mono" rows="3" spellcheck="false" ...${input("parameters")}></textarea><//>
        <${Field} label="Notes" wide><input maxlength="500" ...${input("notes")} /><//></div>
      <p class="muted">Its files are hashed and its weights packed now. It gets no requests until you start a canary.</p>
      <div class="row end"><button type="button" onClick=${close}>Cancel</button><${Button} tone="primary" disabled=${!given.model.trim()} act=${add}>Add it<//></div>`;
  };
  return html`<${Dialog} title="Add a release" close=${close}>${value ? body() : html`<${Waiting} problem=${problem} />`}<//>`;
};
