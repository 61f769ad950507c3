// Keys of a tenant: each is shown once, when it is made.
import { call, get, may, path } from "../api.js";
import { ago, moment } from "../format.js";
import { html } from "../html.js";
import { Badge, Button, Card, Choice, Confirm, Copy, Dialog, Field, Problem, Table, useLoaded, Waiting } from "../parts.js";
import { useState } from "../vendor/hooks.js";
import { EditLimits } from "./limits.js";

/** @typedef {import("../types").Key} Key */
/** @typedef {import("../types").User} User */

const SCOPES = ["inference", "embeddings", "files", "usage:read", "releases:pin", "admin:read", "admin:write"];
// Only platform admins hand these out.
const PLATFORM_SCOPES = ["metrics:read"];
const DAYS = /** @type {[string, string][]} */ ([["", "never"], ["30", "in 30 days"], ["90", "in 90 days"], ["365", "in a year"]]);

/** @param {{ tenant: import("../types").Tenant, session: import("../types").Session }} props */
export const Keys = ({ tenant, session }) => {
  const where = path`/admin/tenants/${tenant.id}/keys`;
  const { value, problem, again } = useLoaded(async () => {
    const users = may("user.read") ? (await get(path`/admin/tenants/${tenant.id}/users`)).data : [session.user];
    const limits = may("limits.read") ? await get(path`/admin/tenants/${tenant.id}/limits`) : {};
    return { keys: /** @type {Key[]} */ ((await get(where)).data), users: /** @type {User[]} */ (users), limits: /** @type {Record<string, import("../types").Limits>} */ (limits) };
  }, []);
  const [making, setMaking] = useState(false);
  const [shown, setShown] = useState(/** @type {Key | null} */ (null));
  const [limiting, setLimiting] = useState(/** @type {Key | null} */ (null));
  const [ending, setEnding] = useState(/** @type {Key | null} */ (null));
  if (!value) return html`<${Waiting} problem=${problem} />`;
  const names = Object.fromEntries(value.users.map((each) => [each.id, each.name]));
  const writes = may("key.write") || may("key.write_own");
  /** @param {Key} key */
  const rotate = async (key) => {
    setShown(await call("POST", `${where}/${encodeURIComponent(key.id)}/rotate`, {}));
    await again();
  };
  /** @type {import("../parts.js").Column<Key>[]} */
  const columns = [
    { title: "Name", cell: (row) => html`<b>${row.name}</b>` },
    { title: "Begins with", cell: (row) => html`<code class="one">ik-${row.prefix}</code>` },
    { title: "User", cell: (row) => names[row.user_id] ?? row.user_id },
    { title: "May", cell: (row) => row.scopes.join(", ") },
    { title: "Models", cell: (row) => row.models?.join(", ") ?? "all" },
    { title: "Made", cell: (row) => html`<span class="one" title=${moment(row.created_s)}>${ago(row.created_s)}</span>` },
    { title: "State", cell: (row) => state(row) },
    { title: "", cell: (row) => (writes && row.revoked_s == null ? html`<span class="row">${may("limits.write_key") ? html`<button type="button" aria-label=${`Limits of ${row.name}`} onClick=${() => setLimiting(row)}>Limits…</button>` : null}<${Button} act=${() => rotate(row)}>Rotate<//>
      <button type="button" aria-label=${`Revoke ${row.name}`} onClick=${() => setEnding(row)}>Revoke…</button></span>` : null) },
  ];
  return html`<${Card} title="Keys" aside=${writes ? html`<button type="button" class="primary" onClick=${() => setMaking(true)}>New key…</button>` : null}>
    <${Problem} problem=${problem} /><${Table} label="Keys" rows=${value.keys} columns=${columns} keyOf=${(/** @type {Key} */ row) => row.id} empty="None yet." />
    ${making ? html`<${NewKey} where=${where} users=${value.users} offered=${session.platform_admin ? [...SCOPES, ...PLATFORM_SCOPES] : SCOPES} close=${() => setMaking(false)} done=${async (/** @type {Key} */ key) => { setMaking(false); setShown(key); await again(); }} />` : null}
    ${shown ? html`<${Dialog} title=${`The key ${shown.name}`} close=${() => setShown(null)}><p>It is shown only once. Store it in a safe place.</p>
      <pre class="code secret" tabindex="0">${shown.key}</pre><div class="row end"><${Copy} text=${shown.key ?? ""} /></div><//>` : null}
    ${limiting ? html`<${Dialog} title=${`Limits of ${limiting.name}`} close=${() => setLimiting(null)}>
      <${EditLimits} ofKey own=${value.limits[limiting.id] ?? {}} where=${`${where}/${encodeURIComponent(limiting.id)}/limits`} done=${async () => { setLimiting(null); await again(); }} /><//>` : null}
    ${ending ? html`<${Confirm} title=${`Revoke ${ending.name}`} verb="Revoke" close=${() => setEnding(null)} act=${async () => { await call("DELETE", `${where}/${encodeURIComponent(ending.id)}`); await again(); }}><p>It stops working immediately and permanently.</p><//>` : null}<//>`;
};

/** @param {Key} key */
const state = (key) => {
  if (key.revoked_s != null) return html`<${Badge} tone="bad">revoked<//>`;
  if (key.expires_s != null) return html`<${Badge} tone=${key.expires_s * 1e3 < Date.now() ? "bad" : "warn"}>${key.expires_s * 1e3 < Date.now() ? "expired" : `until ${moment(key.expires_s)}`}<//>`;
  return html`<${Badge} tone="good">valid<//>`;
};

/** @param {{ where: string, users: User[], offered: string[], close: () => void, done: (key: Key) => void }} props */
const NewKey = ({ where, users, offered, close, done }) => {
  const [name, setName] = useState("");
  const [user, setUser] = useState(users[0]?.id ?? "");
  const [days, setDays] = useState("90");
  const [scopes, setScopes] = useState(["inference", "embeddings", "files", "usage:read"]);
  const make = async () =>
    done(await call("POST", where, {
      name, user_id: user, scopes,
      ...(days ? { expires_at: Math.round(Date.now() / 1e3) + Number(days) * 86400 } : {}),
    }));
  /** @param {string} scope */
  const turn = (scope) => setScopes(scopes.includes(scope) ? scopes.filter((each) => each !== scope) : [...scopes, scope]);
  return html`<${Dialog} title="New key" close=${close}>
    ${users.length ? null : html`<p class="problem">A key belongs to a user: create one first.</p>`}
    <div class="fields">
      <${Field} label="Name" wide><input autofocus maxlength="100" value=${name} onInput=${(/** @type {any} */ event) => setName(event.target.value)} /><//>
      <${Field} label="User"><${Choice} value=${user} options=${users.map((each) => [each.id, each.name])} change=${setUser} /><//>
      <${Field} label="Expires"><${Choice} value=${days} options=${DAYS} change=${setDays} /><//>
    </div>
    <fieldset><legend>It may be used for</legend>${offered.map((scope) => html`<label class="check"><input type="checkbox" checked=${scopes.includes(scope)} onChange=${() => turn(scope)} /> ${scope}</label>`)}</fieldset>
    <div class="row end"><button type="button" onClick=${close}>Cancel</button><${Button} tone="primary" disabled=${!name.trim() || !user} act=${make}>Make it<//></div>
  <//>`;
};
