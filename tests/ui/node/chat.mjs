// Chats with the app as front ends do, with the official clients, and prints what they came to, as JSON.
import { HttpAgent } from "@ag-ui/client";
import { DefaultChatTransport, readUIMessageStream } from "ai";

const [base] = process.argv.slice(2);

const warnings = [];
for (const method of ["warn", "error"]) console[method] = (...args) => warnings.push(args.map(String).join(" "));

async function agui() {
  const agent = new HttpAgent({ url: `${base}/turns`, threadId: "agui" });
  const outcomes = [];
  for (const [place, prompt] of ["What is 1+2?", "And now?", "wait"].entries()) {
    agent.addMessage({ id: `question-${place}`, role: "user", content: prompt });
    const run = agent.runAgent(
      { runId: `run-${place}` },
      {
        onRunFinishedEvent: ({ event }) => void outcomes.push(event.outcome.type),
        onToolCallStartEvent: async ({ event }) => {
          if (event.toolCallName !== "wait") return;
          const { turns } = await (await fetch(`${base}/threads/agui`)).json();
          await fetch(`${base}/turns/${turns.at(-1).turn_id}/stop`, { method: "POST" });
        },
      },
    );
    await run;
  }
  return { outcomes, messages: agent.messages.map(({ role, content }) => [role, content ?? null]) };
}

async function vercel() {
  const transport = new DefaultChatTransport({
    api: `${base}/turns?format=vercel`,
    prepareReconnectToStreamRequest: ({ id }) => ({ api: `${base}/threads/${id}/stream?format=vercel` }),
  });
  const messages = [];
  for (const prompt of ["What is 1+2?", "And now?"]) {
    messages.push({ id: `m${messages.length}`, role: "user", parts: [{ type: "text", text: prompt }] });
    const stream = await transport.sendMessages({ chatId: "chat", trigger: "submit-message", messages });
    let answer;
    for await (const message of readUIMessageStream({ stream })) answer = message;
    messages.push(answer);
  }
  const nothing = await transport.reconnectToStream({ chatId: "chat" });
  const refused = await transport
    .sendMessages({ chatId: "chat", trigger: "submit-message", messages: [] })
    .then(() => null, (error) => error.message);
  return { texts: messages.map(({ parts }) => parts.filter(({ type }) => type === "text").map(({ text }) => text)), nothing, refused };
}

process.stdout.write(JSON.stringify({ agui: await agui(), vercel: await vercel(), warnings }));
