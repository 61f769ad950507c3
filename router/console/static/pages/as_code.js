// The same request from a terminal or a program.
import { currentSession } from "../api.js";
import { html } from "../html.js";
import { Choice, Copy, Dialog } from "../parts.js";
import { useState } from "../vendor/hooks.js";

/** @param {object} body */
export const asCurl = (body) => {
  const key = currentSession()?.csrf_token ? ` \\\n  -H "Authorization: Bearer $INFLIGHT_API_KEY"` : "";
  const sent = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  return `curl -N ${location.origin}/v1/chat/completions${key} \\\n  -H 'Content-Type: application/json' \\\n  -d '${sent}'\n`;
};

/** @param {unknown} value @param {string} [indent] @returns {string} */
const literal = (value, indent = "") => {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = indent + "    ";
  const items = Array.isArray(value)
    ? value.map((each) => inner + literal(each, inner))
    : Object.entries(value).map(([name, each]) => `${inner}${JSON.stringify(name)}: ${literal(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return items.length ? `${open}\n${items.join(",\n")},\n${indent}${close}` : open + close;
};

/** @param {object} body */
export const asPython = (body) => {
  const key = currentSession()?.csrf_token ? 'os.environ["INFLIGHT_API_KEY"]' : '"none"';
  const given = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, "    ")},`);
  return `${key.startsWith("os") ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=${key})
stream = client.chat.completions.create(
${given.join("\n")}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
};

/** @param {{ body: object, close: () => void }} props */
export const AsCode = ({ body, close }) => {
  const [kind, setKind] = useState("curl");
  const text = kind === "curl" ? asCurl(body) : asPython(body);
  return html`<${Dialog} title="The same request" close=${close}>
    <div class="row"><${Choice} label="Language" value=${kind} options=${["curl", "Python"]} change=${setKind} /><${Copy} text=${text} /></div>
    <pre class="code" tabindex="0">${text}</pre>
  <//>`;
};
