// Tenants: users, keys, limits, usage, prices, and what was done to them.
import { call, get, may, path } from "../api.js";
import { html } from "../html.js";
import { Button, Card, Choice, Confirm, Dialog, Field, Problem, Table, useLoaded, Waiting } from "../parts.js";
import { useState } from "../vendor/hooks.js";
import { moment } from "../format.js";
import { Audit } from "./audit.js";
import { Keys } from "./keys.js";
import { TenantLimits } from "./limits.js";
import { Everyone, Prices, UsageOf } from "./usage.js";

/** @typedef {import("../types").Tenant} Tenant */
/** @typedef {import("../types").Session} Session */

/** @param {{ rest: string[], session: Session }} props */
export const Tenants = ({ rest, session }) => {
  const sees = may("organisation.list");
  const { value, problem, again } = useLoaded(async () => (sees ? (await get("/admin/tenants")).data : [{ ...session.tenant, created_s: 0 }]), []);
  if (!value) return html`<${Waiting} problem=${problem} />`;
  /** @type {Tenant[]} */
  const tenants = value.filter((/** @type {Tenant} */ each) => !each.deleted_s);
  const tenant = tenants.find((each) => each.id === rest[0]) ?? tenants.find((each) => each.id === session.tenant.id) ?? tenants[0];
  const views = /** @type {[string, string, boolean, unknown][]} */ ([
    ["all", "All tenants", sees && may("now.read"), Everyone],
    ["usage", "Usage", session.scopes.includes("usage:read"), UsageOf],
    ["keys", "Keys", may("key.read") || may("key.read_own"), Keys],
    ["users", "Users", may("user.read"), Users],
    ["limits", "Limits and budget", may("limits.read"), TenantLimits],
    ["audit", "Audit", may("audit.read"), Audit],
    ["prices", "Prices", may("price.read"), Prices],
  ]).filter(([, , open]) => open);
  const view = views.find(([name]) => name === rest[1]) ?? views[0];
  return html`<div class="title"><h1>Tenants</h1>
      <div class="row">${tenants.length > 1
        ? html`<${Choice} label="Tenant" value=${tenant.id} options=${tenants.map((each) => [each.id, each.name])} change=${(/** @type {string} */ id) => { location.hash = path`#/tenants/${id}/${view[0]}`; }} />`
        : html`<b>${tenant.name}</b>`}
        ${may("organisation.create") ? html`<${NewTenant} done=${again} />` : null}</div></div>
    <${Problem} problem=${problem} />
    <nav class="tabs" aria-label="About the tenant">${views.map(([name, words]) => html`<a href=${path`#/tenants/${tenant.id}/${name}`} aria-current=${name === view[0] ? "page" : undefined}>${words}</a>`)}</nav>
    ${view ? html`<${view[3]} key=${`${tenant.id}/${view[0]}`} tenant=${tenant} session=${session} />` : null}`;
};

/** @param {{ done: () => Promise<void> }} props */
const NewTenant = ({ done }) => {
  const [open, setOpen] = useState(false);
  const [name, setName] = useState("");
  const make = async () => {
    const made = await call("POST", "/admin/tenants", { name });
    await done();
    setOpen(false);
    location.hash = path`#/tenants/${made.id}/users`;
  };
  return html`<button type="button" onClick=${() => setOpen(true)}>New tenant…</button>
    ${open ? html`<${Dialog} title="New tenant" close=${() => setOpen(false)}>
      <${Field} label="Name" wide><input autofocus maxlength="100" value=${name} onInput=${(/** @type {any} */ event) => setName(event.target.value)} /><//>
      <div class="row end"><${Button} tone="primary" disabled=${!name.trim()} act=${make}>Make it<//></div><//>` : null}`;
};

/** @param {{ tenant: Tenant }} props */
const Users = ({ tenant }) => {
  const where = path`/admin/tenants/${tenant.id}/users`;
  const { value, problem, again } = useLoaded(async () => (await get(where)).data, []);
  const [name, setName] = useState("");
  const [role, setRole] = useState("member");
  const [leaving, setLeaving] = useState(/** @type {import("../types").User | null} */ (null));
  if (!value) return html`<${Waiting} problem=${problem} />`;
  const writes = may("user.write");
  const add = async () => {
    await call("POST", where, { name, role });
    setName("");
    await again();
  };
  const roles = ["viewer", "member", "admin", "owner"];
  /** @type {import("../parts.js").Column<import("../types").User>[]} */
  const columns = [
    { title: "Name", cell: (row) => html`<b>${row.name}</b>` },
    { title: "Role", cell: (row) => writes
      ? html`<${Choice} label=${`Role of ${row.name}`} value=${row.role} options=${roles} change=${async (/** @type {string} */ next) => { await call("PATCH", `${where}/${encodeURIComponent(row.id)}`, { role: next }).catch(() => 0); again(); }} />`
      : row.role },
    { title: "Platform admin", cell: (row) => (row.platform_admin ? "yes" : "") },
    { title: "Since", cell: (row) => moment(row.created_s) },
    { title: "", cell: (row) => (writes ? html`<button type="button" onClick=${() => setLeaving(row)}>Delete…</button>` : null) },
  ];
  return html`<${Card} title="Users"><${Problem} problem=${problem} /><${Table} label="Users" rows=${value} columns=${columns} empty="None yet." />
    ${writes ? html`<div class="row form"><${Field} label="New user"><input value=${name} maxlength="100" onInput=${(/** @type {any} */ event) => setName(event.target.value)} /><//>
      <${Field} label="Role"><${Choice} value=${role} options=${roles} change=${setRole} /><//><${Button} tone="primary" disabled=${!name.trim()} act=${add}>Add<//></div>` : null}
    ${leaving ? html`<${Confirm} title=${`Delete ${leaving.name}`} verb="Delete" close=${() => setLeaving(null)} act=${async () => { await call("DELETE", `${where}/${encodeURIComponent(leaving.id)}`); await again(); }}><p>The user's keys stop working immediately.</p><//>` : null}<//>`;
};
