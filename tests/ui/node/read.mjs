// Reads every case from a server with the official clients and prints what they made of it, as JSON.
import { HttpAgent } from "@ag-ui/client";
import { MessageSchema } from "@ag-ui/core/schemas";
import { DefaultChatTransport, readUIMessageStream, safeValidateUIMessages } from "ai";

const [base, ...cases] = process.argv.slice(2);

const warnings = [];
for (const method of ["warn", "error"]) console[method] = (...args) => warnings.push(args.map(String).join(" "));

async function readAgui(name) {
  warnings.length = 0;
  const agent = new HttpAgent({ url: `${base}/agui/${name}`, threadId: "thread_1" });
  agent.addMessage({ id: "question", role: "user", content: "hello" });
  const seen = { events: [], outcome: null, pending: null, failed: null, runError: null, thrown: null };
  try {
    await agent.runAgent(
      { runId: "run_1" },
      {
        onEvent: ({ event }) => void seen.events.push(event.type),
        onRunFinishedEvent: ({ outcome, pendingToolCallIds, event }) => {
          seen.outcome = outcome;
          seen.pending = pendingToolCallIds ?? null;
          seen.result = event.result ?? null;
          seen.usage = event.usage ?? null;
        },
        onRunErrorEvent: ({ event }) => {
          seen.runError = { message: event.message, code: event.code, usage: event.usage };
        },
        onRunFailed: ({ error }) => {
          seen.failed = String(error.message);
        },
      },
    );
  } catch (error) {
    seen.thrown = String(error.message);
  }
  const invalid = agent.messages.filter((message) => !MessageSchema.safeParse(message).success);
  return { ...seen, messages: agent.messages, invalid, warnings: [...warnings] };
}

async function readVercel(name) {
  warnings.length = 0;
  const transport = new DefaultChatTransport({ api: `${base}/vercel/${name}` });
  const seen = { chunks: [], message: null, errors: [], thrown: null };
  try {
    const stream = await transport.sendMessages({
      chatId: "thread_1",
      trigger: "submit-message",
      messages: [{ id: "question", role: "user", parts: [{ type: "text", text: "hello" }] }],
    });
    const [raw, read] = stream.tee();
    const watched = (async () => {
      for await (const chunk of raw) seen.chunks.push(chunk);
    })();
    const messages = readUIMessageStream({
      stream: read,
      onError: (error) => void seen.errors.push(String(error?.message ?? error)),
    });
    for await (const message of messages) seen.message = message;
    await watched;
  } catch (error) {
    seen.thrown = String(error.message);
  }
  // as it would be kept
  const messages = seen.message && JSON.parse(JSON.stringify([seen.message]));
  const valid = await safeValidateUIMessages({ messages });
  return { ...seen, invalid: valid.success ? null : valid.error.message, warnings: [...warnings] };
}

const found = { agui: {}, vercel: {} };
for (const name of cases) {
  found.agui[name] = await readAgui(name);
  found.vercel[name] = await readVercel(name);
}
process.stdout.write(JSON.stringify(found));
