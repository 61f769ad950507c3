// Chats with one model, or with two side by side.
import { get, may } from "../api.js";
import { html } from "../html.js";
import { Choice, Field, Problem, useLoaded, Waiting } from "../parts.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { ask, AnswerView, emptyAnswer } from "./answer.js";
import { AsCode } from "./as_code.js";

/** @typedef {import("./answer.js").Answer} Answer */
/** @typedef {{ said: string, image: string, results: string[], answers: Answer[] }} Turn what was said, or what tools found */

const TOOLS = `[{"type": "function", "function": {"name": "get_weather",
  "description": "The weather of a city now",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]`;
const SCHEMA = `{"type": "object", "properties": {"city": {"type": "string"},
  "population": {"type": "integer"}}, "required": ["city", "population"]}`;
const DEFAULTS = { system: "", max_tokens: "128", temperature: "", top_p: "", seed: "", stop: "", service_tier: "default", schema: "", tools: "" };

/** @typedef {typeof DEFAULTS} Given */

/**
 * What is sent; throws what is wrong with a field, by its name.
 * @param {string} model
 * @param {Given} given
 * @param {object[]} messages
 */
const bodyOf = (model, given, messages) => {
  /** @type {Record<string, unknown>} */
  const body = { model, messages };
  for (const name of /** @type {const} */ (["max_tokens", "temperature", "top_p", "seed"]))
    if (given[name].trim()) {
      body[name] = Number(given[name]);
      if (Number.isNaN(body[name])) throw new Error(`${name}: not a number`);
    }
  if (given.stop) body.stop = given.stop.split("|").map((each) => each.replaceAll("\\n", "\n"));
  if (given.service_tier !== "default") body.service_tier = given.service_tier;
  /** @param {string} name @param {string} text */
  const json = (name, text) => {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Error(`${name}: not valid JSON: ${/** @type {Error} */ (error).message}`);
    }
  };
  if (given.schema.trim())
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: json("JSON schema", given.schema) } };
  if (given.tools.trim()) body.tools = json("tools", given.tools);
  return body;
};

/** @param {Turn[]} turns @param {number} column @param {Given} given @param {Pick<Turn, "said" | "image" | "results">} next */
const messagesOf = (turns, column, given, next) => {
  /** @param {Pick<Turn, "said" | "image" | "results">} turn @param {Answer | undefined} asking @returns {object[]} */
  const asked = ({ said, image, results }, asking) => {
    if (results.length) return results.map((content, at) => ({ role: "tool", tool_call_id: asking?.calls[at]?.id, content }));
    return [{ role: "user", content: image ? [{ type: "text", text: said }, { type: "image_url", image_url: { url: image } }] : said }];
  };
  const before = turns.flatMap((turn, at) => {
    const answer = turn.answers[column];
    if (!answer?.text && !answer?.calls.length) return [];
    const calls = answer.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    return [...asked(turn, turns[at - 1]?.answers[column]), { role: "assistant", content: answer.text || null, ...(calls.length ? { tool_calls: calls } : {}) }];
  });
  return [...(given.system.trim() ? [{ role: "system", content: given.system }] : []), ...before, ...asked(next, turns.at(-1)?.answers[column])];
};

export const Playground = () => {
  const { value: models, problem } = useLoaded(loadModels, []);
  const [chosen, setChosen] = useState(/** @type {string[]} */ ([]));
  const [given, setGiven] = useState(DEFAULTS);
  const [turns, setTurns] = useState(/** @type {Turn[]} */ ([]));
  const [wrong, setWrong] = useState(/** @type {unknown} */ (null));
  const [code, setCode] = useState(/** @type {object | null} */ (null));
  const [running, setRunning] = useState(/** @type {AbortController | null} */ (null));
  const end = useRef(/** @type {HTMLDivElement | null} */ (null));
  useEffect(() => {
    if (models?.length && !chosen.length) setChosen([models[0].name]);
  }, [models]);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [turns.length]);
  if (!models) return html`<${Waiting} problem=${problem} />`;
  if (!models.length) return html`<p class="muted">No chat model is served.</p>`;

  /** @param {string} said @param {string} image @param {string[]} [results] */
  const send = async (said, image, results = []) => {
    let bodies;
    try {
      bodies = chosen.map((model, column) => bodyOf(model, given, messagesOf(turns, column, given, { said, image, results })));
    } catch (error) {
      setWrong(error);
      return false;
    }
    setWrong(null);
    const controller = new AbortController(), at = turns.length;
    setRunning(controller);
    setTurns([...turns, { said, image, results, answers: bodies.map(emptyAnswer) }]);
    /** @param {number} column @param {Answer} answer */
    const put = (column, answer) =>
      setTurns((now) => now.map((turn, number) =>
        number === at ? { ...turn, answers: turn.answers.map((each, other) => (other === column ? answer : each)) } : turn));
    Promise.all(bodies.map((body, column) => ask(body, controller.signal, (answer) => put(column, answer))))
      .finally(() => setRunning(null));
    return true;
  };
  const sees = chosen.every((name) => models.find((each) => each.name === name)?.sees);
  return html`<h1 class="sr">Playground</h1>
    <div class="playground">
      <${Settings} models=${models} chosen=${chosen} setChosen=${setChosen} given=${given} setGiven=${setGiven}
        clear=${() => setTurns([])} />
      <section class="chat" aria-label="Chat">
        <div class=${`turns columns-${chosen.length}`} aria-live="polite">
          ${turns.length ? null : html`<div class="hello"><h2>Ask a model</h2>
            <p class="muted">Each answer shows its stages: queue, prefill, the time of every token, cached tokens, its cost and the replica that computed it.</p></div>`}
          ${turns.map((turn, at) => html`<div class="turn" key=${at}>
            <div class="asked">${turn.results.map((each) => html`<p><span class="muted">tool: </span>${each}</p>`)}${turn.image ? html`<img src=${turn.image} alt="What was sent" />` : null}${turn.said ? html`<p>${turn.said}</p>` : null}</div>
            <div class="answers">${turn.answers.map((answer, column) => html`<div>
              ${turn.answers.length > 1 ? html`<h3>${/** @type {any} */ (answer.body).model}</h3>` : null}
              <${AnswerView} answer=${answer} showCode=${setCode}
                give=${at === turns.length - 1 && chosen.length === 1 && !running ? (/** @type {string[]} */ results) => send("", "", results) : null} /></div>`)}</div>
          </div>`)}
          <div ref=${end}></div>
        </div>
        <${Problem} problem=${wrong} />
        <${Composer} send=${send} running=${running} sees=${sees} />
      </section>
    </div>
    ${code ? html`<${AsCode} body=${code} close=${() => setCode(null)} />` : null}`;
};

/** Models that chat, and their releases where this caller may know them. */
const loadModels = async () => {
  /** @type {import("../types").Model[]} */
  const served = (await get("/v1/models")).data.filter((/** @type {import("../types").Model} */ each) => each.capabilities.chat);
  /** @type {import("../types").Release[]} */
  const releases = may("release.read") ? (await get("/admin/releases")).data : [];
  return served.flatMap((each) => {
    const others = releases.filter((release) => release.model === each.id && release.state === "ready");
    const names = [each.id, ...(others.length > 1 ? others.map((release) => release.release) : [])];
    return names.map((name) => ({ name, sees: each.capabilities.vision }));
  });
};

/**
 * @param {{ models: { name: string }[], chosen: string[], setChosen: (names: string[]) => void, given: Given,
 *   setGiven: (given: Given) => void, clear: () => void }} props
 */
const Settings = ({ models, chosen, setChosen, given, setGiven, clear }) => {
  const names = models.map((each) => each.name);
  /** @param {keyof Given} name */
  const input = (name) => ({ value: given[name], onInput: (/** @type {any} */ event) => setGiven({ ...given, [name]: event.target.value }) });
  return html`<aside class="settings card" aria-label="Model and parameters">
    <${Field} label="Model"><${Choice} value=${chosen[0]} options=${names} change=${(/** @type {string} */ name) => setChosen([name, ...chosen.slice(1)])} /><//>
    <${Field} label="Beside it"><${Choice} value=${chosen[1] ?? ""} options=${[["", "no second model"], ...names]}
      change=${(/** @type {string} */ name) => setChosen(name ? [chosen[0], name] : [chosen[0]])} /><//>
    <details open=${innerWidth > 860}>
      <summary>Parameters</summary>
      <div class="fields">
        <${Field} label="System message" wide><textarea rows="2" ...${input("system")}></textarea><//>
        <${Field} label="Most tokens"><input inputmode="numeric" ...${input("max_tokens")} /><//>
        <${Field} label="Temperature"><input inputmode="decimal" placeholder="model's" ...${input("temperature")} /><//>
        <${Field} label="Top p"><input inputmode="decimal" placeholder="model's" ...${input("top_p")} /><//>
        <${Field} label="Seed"><input inputmode="numeric" placeholder="random" ...${input("seed")} /><//>
        <${Field} label="Tier"><${Choice} value=${given.service_tier} options=${["default", "priority", "flex"]} change=${(/** @type {string} */ value) => setGiven({ ...given, service_tier: value })} /><//>
        <${Field} label="Stop at" hint="several: a|b"><input ...${input("stop")} /><//>
      </div>
    </details>
    <details><summary>JSON schema${given.schema.trim() ? " ●" : ""}</summary>
      <${Field} label="JSON schema of the answer" wide><textarea rows="6" class="mono" spellcheck="false" ...${input("schema")}></textarea><//>
      <button type="button" class="quiet" onClick=${() => setGiven({ ...given, schema: given.schema ? "" : SCHEMA })}>${given.schema ? "Remove" : "Example"}</button>
    </details>
    <details><summary>Tools${given.tools.trim() ? " ●" : ""}</summary>
      <${Field} label="Functions it may call" wide><textarea rows="6" class="mono" spellcheck="false" ...${input("tools")}></textarea><//>
      <button type="button" class="quiet" onClick=${() => setGiven({ ...given, tools: given.tools ? "" : TOOLS })}>${given.tools ? "Remove" : "Example"}</button>
    </details>
    <button type="button" onClick=${clear}>New chat</button>
  </aside>`;
};

/** @param {{ send: (said: string, image: string) => Promise<boolean>, running: AbortController | null, sees: boolean }} props */
const Composer = ({ send, running, sees }) => {
  const [said, setSaid] = useState("");
  const [image, setImage] = useState("");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!said.trim() || running) return;
    if (await send(said, image)) {
      setSaid("");
      setImage("");
    }
  };
  /** @param {any} event */
  const pick = (event) => {
    const file = event.target.files[0], reader = new FileReader();
    reader.onload = () => setImage(String(reader.result));
    if (file) reader.readAsDataURL(file);
  };
  return html`<form class="composer" onSubmit=${submit}>
    <label class="sr" for="said">Message</label>
    <textarea id="said" rows="2" placeholder="Ask something. Enter sends, Shift+Enter is a new line." value=${said}
      onInput=${(/** @type {any} */ event) => setSaid(event.target.value)}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && submit(event)}></textarea>
    ${image ? html`<button type="button" class="quiet picked" onClick=${() => setImage("")} aria-label="Do not send the image"><img src=${image} alt="" />✕</button>` : null}
    ${sees ? html`<label class="button quiet">Image<input class="sr" type="file" accept="image/*" onChange=${pick} /></label>` : null}
    ${running
      ? html`<button type="button" class="danger" onClick=${() => running.abort()}>Stop</button>`
      : html`<button class="primary" disabled=${!said.trim()}>Send</button>`}
  </form>`;
};
