// OpenAI's library for Node.
// dependencies: openai@7.53.0
import OpenAI from "openai";
import { STACK, check, main } from "./uses.mjs";

const client = new OpenAI({ baseURL: STACK.v1, apiKey: STACK.key });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const { model, embedder } = STACK;

await main({
  models: async () => {
    const found = [];
    for await (const each of client.models.list()) found.push(each.id);
    check(found.includes(model), found);
  },
  chat: async () => {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 16 });
    check(answer.choices[0].message.content, answer);
  },
  "chat, streamed": async () => {
    let text = "";
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 16, stream: true });
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    check(text, text);
  },
  "tool run by the library": async () => {
    let asked = 0;
    const runner = client.chat.completions.runTools({
      model,
      messages,
      max_tokens: 64,
      tool_choice: { type: "function", function: { name: "get_weather" } },
      tools: [
        {
          type: "function",
          function: {
            name: "get_weather",
            parse: JSON.parse,
            parameters: { type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"] },
            function: ({ city }) => (asked++, `It is sunny in ${city}.`),
          },
        },
      ],
    });
    await runner.done();
    check(asked === 1, asked);
  },
  embeddings: async () => {
    const answer = await client.embeddings.create({ model: embedder, input: ["one", "two"] });
    check(answer.data.length === 2 && answer.data[0].embedding.length > 100, answer.data.length);
  },
  responses: async () => {
    const answer = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 16 });
    check(answer.output_text, answer);
  },
  errors: async () => {
    const error = await client.chat.completions.create({ model: "nope", messages }).catch((caught) => caught);
    check(error instanceof OpenAI.NotFoundError, error);
  },
});
