// A key, once; the browser keeps a cookie that no script can read.
import { signIn } from "../api.js";
import { html } from "../html.js";
import { Problem } from "../parts.js";
import { useState } from "../vendor/hooks.js";

/** @param {{ done: (session: import("../types").Session) => void, theme: unknown }} props */
export const SignIn = ({ done, theme }) => {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState(/** @type {unknown} */ (null));
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    try {
      done(await signIn(key.trim()));
    } catch (error) {
      setProblem(error);
    }
  };
  return html`<main class="sign-in">
    <div class="corner">${theme}</div>
    <form class="card" onSubmit=${submit}>
      <h1><span class="mark" aria-hidden="true"></span>Inflight</h1>
      <label class="field wide"><span>API key</span>
        <input type="password" autocomplete="current-password" autofocus required value=${key} placeholder="ik-…"
          onInput=${(/** @type {any} */ event) => setKey(event.target.value)} /></label>
      <button class="primary">Sign in</button>
      <${Problem} problem=${problem} />
      <p class="muted">The console shows what the key may see. Create one with all permissions with${" "}
        <code>inflight keys create NAME --user root --platform-admin</code></p>
    </form>
  </main>`;
};
