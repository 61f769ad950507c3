// OpenAI's Codex CLI, as a program in a folder of its own.
// dependencies: @openai/codex@0.166.0
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { STACK, check, main } from "./uses.mjs";

function codex(...options) {
  const home = mkdtempSync(join(tmpdir(), "codex-"));
  const provider = `{name="inflight",base_url="${STACK.v1}",wire_api="responses",env_key="INFLIGHT_KEY"}`;
  // Its own instructions are as long as all that the default model can read.
  const instructions = join(home, "instructions.md");
  writeFileSync(instructions, "Be brief. Use no tools.");
  const settings = [
    `model="${STACK.model}"`,
    'model_provider="inflight"',
    `model_providers.inflight=${provider}`,
    `model_instructions_file="${instructions}"`,
  ];
  const done = spawnSync(
    join("node_modules", ".bin", "codex"),
    ["exec", "--skip-git-repo-check", "-C", home, "--json", ...settings.flatMap((each) => ["-c", each]), ...options],
    { env: { ...process.env, CODEX_HOME: home, INFLIGHT_KEY: STACK.key }, encoding: "utf8", timeout: 300_000 },
  );
  check(done.status === 0, `${done.stdout}${done.stderr}`.slice(-2000));
  return done.stdout;
}

await main({
  "exec: one turn": () => {
    const told = codex("Say hello.");
    check(told.includes("turn.completed"), told.slice(-1000));
  },
});
