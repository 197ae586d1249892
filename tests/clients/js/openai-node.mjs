// openai-node.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI();
const ask = (content, options = {}) => ({
  model: process.env.OPENAI_MODEL,
  messages: [{ role: "user", content }],
  temperature: 0,
  ...options,
});

const plain = await client.chat.completions.create(ask("Hello"));
const stream = client.chat.completions.stream(ask("Hello"));
const streamed = [];
stream.on("content", (delta) => streamed.push(delta));
await stream.finalChatCompletion();
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};
const tool = await client.chat.completions.create(
  ask("What is the weather in Rome?", {
    tools: [
      {
        type: "function",
        function: { name: "get_weather", description: "Get the weather in a city", parameters },
      },
    ],
  }),
);
const call = tool.choices[0].message.tool_calls[0].function;
const Person = z.object({ name: z.string(), age: z.int(), city: z.string() });
const structured = await client.chat.completions.parse(
  ask("Extract as JSON: Alice, 31, from Oslo.", {
    response_format: zodResponseFormat(Person, "person"),
  }),
);
console.log(
  JSON.stringify({
    plain: plain.choices[0].message.content,
    streamed,
    tool: [call.name, JSON.parse(call.arguments)],
    structured: structured.choices[0].message.parsed,
  }),
);
