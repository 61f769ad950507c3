// OpenAI's Codex CLI, as a program in a folder of its own.
// dependencies: @openai/codex@0.166.0
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { STACK, check, main } from "./uses.mjs";

function codex(prompt, instructions) {
  const home = mkdtempSync(join(tmpdir(), "codex-"));
  const provider = `{name="inflight",base_url="${STACK.v1}",wire_api="responses",env_key="INFLIGHT_KEY"}`;
  const settings = [`model="${STACK.model}"`, 'model_provider="inflight"', `model_providers.inflight=${provider}`];
  if (instructions) {
    const file = join(home, "instructions.md");
    writeFileSync(file, instructions);
    settings.push(`model_instructions_file="${file}"`);
  }
  const options = ["--skip-git-repo-check", "-C", home, "--json", ...settings.flatMap((each) => ["-c", each])];
  const environment = { ...process.env, CODEX_HOME: home, INFLIGHT_KEY: STACK.key };
  const command = join("node_modules", ".bin", "codex");
  // A small model on few cores reads the descriptions of its tools, some 5,000 tokens, for a minute or more.
  const done = spawnSync(command, ["exec", ...options, prompt], {
    env: environment,
    encoding: "utf8",
    timeout: 900_000,
  });
  return `${done.stdout}${done.stderr}`;
}

await main({
  "exec: one turn": () => {
    const told = codex("Say hello.", "Be brief. Use no tools.");
    check(told.includes("turn.completed"), told.slice(-1000));
  },
  "exec: its own instructions, refused in words where they are longer than all that the model can read": () => {
    const told = codex("Say hello.");
    check(told.includes("turn.completed") || told.includes("maximum context length"), told.slice(-1000));
  },
});
