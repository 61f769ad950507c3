// The console: who is signed in, which page is open, and the way between pages.
import * as api from "./api.js";
import { html } from "./html.js";
import { Now } from "./pages/now.js";
import { Objectives } from "./pages/objectives.js";
import { Playground } from "./pages/playground.js";
import { Releases } from "./pages/releases.js";
import { Requests } from "./pages/requests.js";
import { Runs } from "./pages/runs.js";
import { SignIn } from "./pages/sign_in.js";
import { Tenants } from "./pages/tenants.js";
import { useEffect, useState } from "./vendor/hooks.js";
import { render } from "./vendor/preact.js";

/** @typedef {{ name: string, page: unknown, open: () => boolean }} Entry */

/** @type {Record<string, Entry>} */
const PAGES = {
  playground: { name: "Playground", page: Playground, open: () => has("inference") },
  now: { name: "Now", page: Now, open: () => api.may("now.read") },
  releases: { name: "Releases", page: Releases, open: () => api.may("release.read") },
  tenants: { name: "Tenants", page: Tenants, open: () => api.may("organisation.read") || has("usage:read") },
  requests: { name: "Requests", page: Requests, open: () => api.may("request.read") },
  objectives: { name: "Objectives", page: Objectives, open: () => api.may("objective.read") },
  runs: { name: "Test runs", page: Runs, open: () => true },
};

/** @param {string} scope */
const has = (scope) => Boolean(api.currentSession()?.scopes.includes(scope));

const place = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);

const Theme = () => {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const turn = () => {
    const next = theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", next);
    dispatchEvent(new Event("theme"));
    setTheme(next);
  };
  return html`<button type="button" class="quiet" onClick=${turn} aria-label=${`Use the ${theme === "dark" ? "light" : "dark"} theme`}>
    <span aria-hidden="true">${theme === "dark" ? "☀" : "☾"}</span></button>`;
};

/** @param {{ session: import("./types").Session }} props */
const Shell = ({ session }) => {
  const [[name, ...rest], setPlace] = useState(place);
  useEffect(() => {
    const moved = () => setPlace(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const open = Object.entries(PAGES).filter(([, each]) => each.open());
  const here = open.find(([path]) => path === name) ?? open[0];
  useEffect(() => {
    document.title = `${here[1].name} · Inflight`;
  }, [here[0]]);
  const signedIn = session.csrf_token !== null;
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the page</a>
    <header class="top">
      <a class="brand" href="#/${open[0][0]}"><span class="mark" aria-hidden="true"></span>Inflight</a>
      <nav aria-label="Pages">
        ${open.map(([path, each]) => html`<a href="#/${path}" aria-current=${path === here[0] ? "page" : undefined}>${each.name}</a>`)}
      </nav>
      <div class="who">
        <span class="name" title=${`${session.tenant.name}, ${session.platform_admin ? "platform admin" : session.user.role}`}>
          ${signedIn ? `${session.user.name} · ${session.tenant.name}` : "no keys: this machine only"}</span>
        <${Theme} />
        ${signedIn ? html`<button type="button" class="quiet" onClick=${() => api.signOut()}>Sign out</button>` : null}
      </div>
    </header>
    <main id="main" tabindex="-1" class=${`page-${here[0]}`}>
      <${here[1].page} key=${here[0]} rest=${here[0] === name ? rest : []} session=${session} />
    </main>`;
};

const Console = () => {
  const [session, setSession] = useState(/** @type {import("./types").Session | null | undefined} */ (undefined));
  useEffect(() => {
    const left = () => setSession(null);
    addEventListener("signed-out", left);
    api.whoAmI().then(setSession, left);
    return () => removeEventListener("signed-out", left);
  }, []);
  if (session === undefined) return html`<p class="muted alone" role="status">Loading…</p>`;
  return session ? html`<${Shell} session=${session} />` : html`<${SignIn} done=${setSession} theme=${html`<${Theme} />`} />`;
};

const here = /** @type {Element} */ (document.getElementById("console"));
here.replaceChildren();
render(html`<${Console} />`, here);
