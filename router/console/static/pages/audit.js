// What was done, and what was refused.
import { get } from "../api.js";
import { csv, download, moment } from "../format.js";
import { html } from "../html.js";
import { Badge, Card, Choice, Field, Problem, Table, useLoaded, Waiting } from "../parts.js";
import { useState } from "../vendor/hooks.js";

/** @typedef {import("../types").AuditEntry} AuditEntry */

/** @param {{ tenant: import("../types").Tenant, session: import("../types").Session }} props */
export const Audit = ({ tenant, session }) => {
  const [of, setOf] = useState("this");
  const [words, setWords] = useState("");
  const [kind, setKind] = useState("all");
  const query = of === "this" ? `?limit=1000&tenant=${encodeURIComponent(tenant.id)}` : "?limit=1000";
  const { value, problem } = useLoaded(async () => (await get(`/admin/audit${query}`)).data, [query]);
  if (!value) return html`<${Waiting} problem=${problem} />`;
  /** @type {AuditEntry[]} */
  const all = value;
  const wanted = words.toLowerCase();
  const rows = all.filter((row) => (kind === "all" || row.allowed === (kind === "done")) &&
    [row.action, row.actor, row.target, row.address, row.key_id, JSON.stringify(row.detail)].some((each) => each.toLowerCase().includes(wanted)));
  const save = () => download("audit.csv", csv(["at", "actor", "tenant", "action", "target", "allowed", "key", "address", "detail"],
    rows.map((row) => [new Date(row.at_s * 1e3).toISOString(), row.actor, row.organisation_id, row.action, row.target, String(row.allowed), row.key_id, row.address, JSON.stringify(row.detail)])));
  return html`<div class="filters">
      ${session.platform_admin ? html`<${Field} label="Of"><${Choice} value=${of} options=${[["this", "this tenant"], ["all", "all tenants"]]} change=${setOf} /><//>` : null}
      <${Field} label="Show"><${Choice} value=${kind} options=${[["all", "all"], ["done", "done"], ["refused", "refused"]]} change=${setKind} /><//>
      <${Field} label="With the words"><input value=${words} onInput=${(/** @type {any} */ event) => setWords(event.target.value)} /><//>
      <button type="button" onClick=${save} disabled=${!rows.length}>CSV</button></div>
    <${Problem} problem=${problem} />
    <${Card}><${Table} label="Audit log" rows=${rows.slice(0, 200)} empty="No matching entries." columns=${COLUMNS} />${rows.length > 200 ? html`<p class="muted">200 of ${rows.length}; the CSV contains all.</p>` : null}<//>`;
};

/** Without what was left as it is. @param {object} detail */
const known = (detail) => Object.entries(detail).filter(([, own]) => own != null).map(([name, own]) => `${name}: ${typeof own === "object" ? JSON.stringify(own) : own}`).join(", ");

/** @type {import("../parts.js").Column<AuditEntry>[]} */
const COLUMNS = [
  { title: "At", cell: (row) => html`<span class="one">${moment(row.at_s)}</span>` },
  { title: "Action", cell: (row) => html`<b>${row.action}</b>${row.allowed ? null : html` <${Badge} tone="bad">refused<//>`}` },
  { title: "Target", cell: (row) => row.target },
  { title: "By", cell: (row) => html`${row.actor}${row.key_id ? html`<br /><span class="muted">${row.key_id}</span>` : null}` },
  { title: "From", cell: (row) => row.address || "command line" },
  { title: "Detail", cell: (row) => html`<code>${known(row.detail)}</code>` },
];
