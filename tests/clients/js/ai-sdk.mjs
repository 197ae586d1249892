// The Vercel AI SDK with its provider for compatible servers.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "fastrun",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const settings = { model: provider(process.env.OPENAI_MODEL), temperature: 0, maxRetries: 0 };

const plain = await generateText({ ...settings, prompt: "Hello" });
const stream = streamText({ ...settings, prompt: "Hello" });
const streamed = [];
for await (const delta of stream.textStream) streamed.push(delta);
if (!((await stream.usage).outputTokens > 0)) throw new Error("the stream has no usage");
const called = await generateText({
  ...settings,
  prompt: "What is the weather in Rome?",
  tools: {
    get_weather: tool({
      description: "Get the weather in a city",
      inputSchema: z.object({ city: z.string() }),
      execute: async () => ({ result: 21 }),
    }),
  },
  stopWhen: stepCountIs(2),
});
if (called.text !== "The result is 21.") throw new Error(called.text);
const call = called.steps[0].toolCalls[0];
const structured = await generateText({
  ...settings,
  prompt: "Extract as JSON: Alice, 31, from Oslo.",
  output: Output.object({ schema: z.object({ name: z.string(), age: z.int(), city: z.string() }) }),
});
console.log(
  JSON.stringify({
    plain: plain.text,
    streamed,
    tool: [call.toolName, call.input],
    structured: structured.output,
  }),
);
