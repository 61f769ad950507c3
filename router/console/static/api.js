// The public API, as any other client calls it; a session's cookie goes with it, and its token.

/** @typedef {import("./types").Session} Session */

export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @type {Session | null} */
let session = null;

export const currentSession = () => session;

/** @param {Record<string, string>} [more] */
const headers = (more = {}) => ({
  ...more,
  ...(session?.csrf_token ? { "x-inflight-csrf": session.csrf_token } : {}),
});

/** @param {Response} answer */
const problem = async (answer) => {
  const told = await answer.json().catch(() => null);
  const said = told?.error?.message ?? told?.error ?? `status ${answer.status}`;
  if (answer.status === 401) dispatchEvent(new Event("signed-out"));
  return new ApiError(answer.status, String(said));
};

/**
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export const call = async (method, path, body, signal) => {
  const sent = body === undefined ? undefined : JSON.stringify(body);
  const kind = /** @type {Record<string, string>} */ (sent === undefined ? {} : { "content-type": "application/json" });
  const answer = await fetch(path, { method, headers: headers(kind), body: sent, signal }).catch(() => {
    throw new ApiError(0, "the router is unreachable");
  });
  if (!answer.ok) throw await problem(answer);
  return answer.json();
};

/** @param {string} path */
export const get = (path) => call("GET", path);

/** Parts of a path, of which none can become two. @param {TemplateStringsArray} strings @param {(string | number)[]} values */
export const path = (strings, ...values) =>
  String.raw({ raw: strings }, ...values.map((value) => encodeURIComponent(value)));

/** @returns {Promise<Session>} */
export const whoAmI = async () => (session = await get("/admin/session"));

/** @param {string} key @returns {Promise<Session>} */
export const signIn = async (key) => (session = await call("POST", "/admin/session", { key }));

export const signOut = async () => {
  await call("DELETE", "/admin/session");
  session = null;
  dispatchEvent(new Event("signed-out"));
};

/** @param {string} action */
export const may = (action) => Boolean(session?.may.includes(action));

/**
 * Server-sent events of one answer, each parsed; returns when the answer is over.
 * @param {string} path
 * @param {object} body
 * @param {Record<string, string>} more headers
 * @param {AbortSignal} signal
 * @param {(answer: Response) => void} begun
 * @param {(event: any) => void} heard
 */
export const stream = async (path, body, more, signal, begun, heard) => {
  const answer = await fetch(path, {
    method: "POST",
    headers: headers({ "content-type": "application/json", ...more }),
    body: JSON.stringify(body),
    signal,
  });
  if (!answer.ok || !answer.body) throw await problem(answer);
  begun(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (unread + value).split("\n\n");
    unread = /** @type {string} */ (events.pop());
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const told = JSON.parse(event.slice(6));
      if (told.error) throw new ApiError(0, String(told.error.message ?? told.error));
      heard(told);
    }
  }
};
