// Vercel's AI SDK.
// dependencies: ai@7.0.169 @ai-sdk/openai-compatible@3.0.90 @ai-sdk/openai@4.0.114 zod@4.6.7
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { STACK, check, main } from "./uses.mjs";

const provider = createOpenAICompatible({
  name: "inflight",
  baseURL: STACK.v1,
  apiKey: STACK.key,
  supportsStructuredOutputs: true,
});
const model = provider(STACK.model);
const prompt = "What is the capital of France?";

await main({
  generateText: async () => {
    const { text } = await generateText({ model, prompt, maxOutputTokens: 16 });
    check(text, text);
  },
  streamText: async () => {
    let text = "";
    for await (const piece of streamText({ model, prompt, maxOutputTokens: 16 }).textStream) text += piece;
    check(text, text);
  },
  "structured output by a zod schema": async () => {
    const format = Output.object({ schema: z.object({ name: z.enum(["Paris", "Rome"]), isCapital: z.boolean() }) });
    const { output } = await generateText({ model, prompt, output: format, maxOutputTokens: 64 });
    check(typeof output.name === "string", output);
  },
  "tool run by the SDK": async () => {
    let asked = 0;
    const weather = tool({
      description: "The weather of a city",
      inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
      execute: async ({ city }) => (asked++, `It is sunny in ${city}.`),
    });
    await generateText({ model, prompt, tools: { weather }, toolChoice: "required", maxOutputTokens: 64 });
    check(asked === 1, asked);
  },
  "reasoning effort and reasoning in the history": async () => {
    const messages = [
      { role: "user", content: "Hello" },
      {
        role: "assistant",
        content: [
          { type: "reasoning", text: "They greet me." },
          { type: "text", text: "Hello!" },
        ],
      },
      { role: "user", content: prompt },
    ];
    const providerOptions = { inflight: { reasoningEffort: "low" } };
    const { text } = await generateText({ model, messages, maxOutputTokens: 16, providerOptions });
    check(text, text);
  },
  "responses by OpenAI's provider": async () => {
    const openai = createOpenAI({ baseURL: STACK.v1, apiKey: STACK.key });
    const { text } = await generateText({ model: openai.responses(STACK.model), prompt, maxOutputTokens: 16 });
    check(text, text);
  },
  embedMany: async () => {
    const { embeddings } = await embedMany({
      model: provider.textEmbeddingModel(STACK.embedder),
      values: ["one", "two"],
    });
    check(embeddings.length === 2 && embeddings[0].length > 100, embeddings.length);
  },
});
