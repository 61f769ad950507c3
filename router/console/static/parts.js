// What pages are made of.
import { html } from "./html.js";
import { useCallback, useEffect, useRef, useState } from "./vendor/hooks.js";

/** @typedef {import("./vendor/preact.js").Child} Child */

/** @param {{ title?: Child, aside?: Child, children?: Child, class?: string }} props */
export const Card = ({ title, aside, children, class: name = "" }) => html`
  <section class=${`card ${name}`}>
    ${title || aside
      ? html`<header class="card-head"><h2>${title}</h2>${aside ? html`<div class="aside">${aside}</div>` : null}</header>`
      : null}
    ${children}
  </section>`;

/** @param {{ name: Child, value: Child, note?: Child, tone?: string }} props */
export const Stat = ({ name, value, note, tone = "" }) => html`
  <div class=${`stat ${tone}`}><dt>${name}</dt><dd>${value}</dd>${note ? html`<dd class="note">${note}</dd>` : null}</div>`;

/** @param {{ tone?: string, children?: Child }} props */
export const Badge = ({ tone = "", children }) => html`<span class=${`badge ${tone}`}>${children}</span>`;

/**
 * @template T
 * @typedef {{ title: string, cell: (row: T) => Child, number?: boolean }} Column
 */
/**
 * A table that scrolls by itself where it is wider than the page.
 * @template T
 * @param {{ label: string, columns: Column<T>[], rows: T[], empty?: string, keyOf?: (row: T) => string }} props
 */
export const Table = ({ label, columns, rows, empty = "Nothing yet.", keyOf }) =>
  rows.length
    ? html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
        <table>
          <thead><tr>${columns.map((each) => html`<th scope="col" class=${each.number ? "number" : ""}>${each.title}</th>`)}</tr></thead>
          <tbody>
            ${rows.map(
              (row, at) => html`<tr key=${keyOf ? keyOf(row) : at}>
                ${columns.map((each) => html`<td class=${each.number ? "number" : ""}>${each.cell(row)}</td>`)}
              </tr>`,
            )}
          </tbody>
        </table>
      </div>`
    : html`<p class="muted">${empty}</p>`;

/** @param {{ part: number | null, label: string, tone?: string }} props */
export const Meter = ({ part, label, tone = "" }) =>
  part == null
    ? html`<span class="muted">–</span>`
    : html`<span class="meter" role="img" aria-label=${`${label}: ${Math.round(part * 100)} %`}>
        <span class="track"><span class=${`fill ${tone}`} style=${{ width: `${Math.min(part, 1) * 100}%` }}></span></span>
        <span aria-hidden="true">${Math.round(part * 100)} %</span>
      </span>`;

/**
 * @param {{ label: string, children?: Child, hint?: Child, wide?: boolean }} props
 */
export const Field = ({ label, children, hint, wide }) => html`
  <label class=${wide ? "field wide" : "field"}><span>${label}</span>${children}${hint ? html`<small>${hint}</small>` : null}</label>`;

/** @param {{ value: string, options: (string | [string, string])[], change: (value: string) => void, label?: string }} props */
export const Choice = ({ value, options, change, label }) => html`
  <select value=${value} aria-label=${label} onChange=${(/** @type {any} */ event) => change(event.target.value)}>
    ${options.map((each) => {
      const [known, shown] = Array.isArray(each) ? each : [each, each];
      return html`<option value=${known} selected=${known === value}>${shown}</option>`;
    })}
  </select>`;

/** @param {{ problem: unknown }} props */
export const Problem = ({ problem }) =>
  problem ? html`<p class="problem" role="alert">${problem instanceof Error ? problem.message : String(problem)}</p>` : null;

/**
 * What a button does is done once at a time, and what goes wrong is told beside it.
 * @param {{ act: () => Promise<unknown> | void, children?: Child, tone?: string, disabled?: boolean, label?: string }} props
 */
export const Button = ({ act, children, tone = "", disabled = false, label }) => {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {unknown} */ (null));
  const press = async () => {
    setBusy(true);
    setProblem(null);
    try {
      await act();
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  return html`<span class="act">
    <button type="button" class=${tone} disabled=${disabled || busy} aria-label=${label} onClick=${press}>${children}</button>
    <${Problem} problem=${problem} />
  </span>`;
};

/** @param {{ text: string, children?: Child }} props */
export const Copy = ({ text, children = "Copy" }) => {
  const [copied, setCopied] = useState(false);
  const act = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<${Button} act=${act} tone="quiet">${copied ? "Copied" : children}<//>`;
};

/**
 * A dialog above the page: the browser keeps the focus in it, and Escape closes it.
 * @param {{ title: string, close: () => void, children?: Child }} props
 */
export const Dialog = ({ title, close, children }) => {
  const place = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    place.current?.showModal();
  }, []);
  return html`<dialog ref=${place} onClose=${close} aria-labelledby="dialog-title">
    <header><h2 id="dialog-title">${title}</h2>
      <button type="button" class="quiet" aria-label="Close" onClick=${() => place.current?.close()}>✕</button></header>
    ${children}
  </dialog>`;
};

/**
 * Asks before something is done, with a reason where one is kept.
 * @param {{ title: string, verb: string, tone?: string, reason?: boolean, close: () => void,
 *   act: (reason: string) => Promise<unknown>, children?: Child }} props
 */
export const Confirm = ({ title, verb, tone = "danger", reason = false, close, act, children }) => {
  const [why, setWhy] = useState("");
  return html`<${Dialog} title=${title} close=${close}>
    ${children}
    ${reason
      ? html`<${Field} label="Reason" wide hint="Kept in the history and the audit log.">
          <input value=${why} maxlength="500" autofocus onInput=${(/** @type {any} */ event) => setWhy(event.target.value)} /><//>`
      : null}
    <div class="row end">
      <button type="button" onClick=${close}>Cancel</button>
      <${Button} tone=${tone} disabled=${reason && !why.trim()} act=${async () => { await act(why.trim()); close(); }}>${verb}<//>
    </div>
  <//>`;
};

/**
 * What the API answers, again every so often where that is said, and when `again` is called.
 * @template T
 * @param {() => Promise<T>} load
 * @param {unknown[]} on
 * @param {number} [everyMs]
 * @returns {{ value: T | null, problem: unknown, again: () => Promise<void> }}
 */
export const useLoaded = (load, on, everyMs) => {
  const [value, setValue] = useState(/** @type {T | null} */ (null));
  const [problem, setProblem] = useState(/** @type {unknown} */ (null));
  const turn = useRef(0);
  const again = useCallback(async () => {
    const mine = ++turn.current;
    try {
      const found = await load();
      if (mine !== turn.current) return;
      setValue(() => found);
      setProblem(null);
    } catch (error) {
      if (mine === turn.current) setProblem(error);
    }
  }, on);
  useEffect(() => {
    setValue(null);
    again();
    const timer = everyMs ? setInterval(() => document.hidden || again(), everyMs) : 0;
    return () => {
      turn.current++;
      clearInterval(timer);
    };
  }, [again]);
  return { value, problem, again };
};

/** @param {{ problem: unknown, children?: Child }} props */
export const Waiting = ({ problem, children = "Loading…" }) =>
  problem ? html`<${Problem} problem=${problem} />` : html`<p class="muted" role="status">${children}</p>`;
