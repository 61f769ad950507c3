// The same as uses.py, for clients of Node.
import { appendFileSync } from "node:fs";

const given = process.env;
export const STACK = {
  url: given.INFLIGHT_URL ?? "http://127.0.0.1:8080",
  v1: `${given.INFLIGHT_URL ?? "http://127.0.0.1:8080"}/v1`,
  model: given.INFLIGHT_MODEL ?? "smollm2-135m-instruct",
  embedder: given.INFLIGHT_EMBEDDER ?? "all-minilm-l6-v2",
  key: given.INFLIGHT_KEY ?? "none-needed",
};

export function check(condition, found) {
  if (!condition) throw new Error(`not as expected: ${JSON.stringify(found)}`.slice(0, 500));
}

export async function main(uses) {
  let failed = false;
  for (const [use, act] of Object.entries(uses)) {
    const began = performance.now();
    let problem = "";
    try {
      await act();
    } catch (error) {
      console.error(error);
      problem = `${error.name}: ${error.message}`;
      failed = true;
    }
    const took_s = Number(((performance.now() - began) / 1000).toFixed(2));
    console.log(`${problem ? "failed" : "ok    "}  ${use}  (${took_s} s)`);
    if (given.INFLIGHT_REPORT) {
      appendFileSync(given.INFLIGHT_REPORT, JSON.stringify({ use, problem, took_s }) + "\n");
    }
  }
  process.exit(failed ? 1 : 0);
}
