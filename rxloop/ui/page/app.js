/** The chat: one thread of turns, shared by every page that has its address. */

import { TurnStream } from "./stream.js";
import { TurnView } from "./turn.js";
import { element, sentence, sourceOf, write } from "./words.js";

const POLL = 3000;
const AT_ONCE = 3; // streams of earlier turns: a browser keeps few connections to one server
const ATTEMPTS = 4; // what is over and not to be had will not come back
const ANNOUNCED = 4000;
const NEAR = 80;

const page = Object.fromEntries(
  ["announcer", "composer", "connection", "log", "model", "new-chat", "notice", "prompt", "scroller", "send", "stop",
    "suggestions", "welcome"].map((id) => [id, document.getElementById(id)]),
);
const neighbours = "BroadcastChannel" in window ? new BroadcastChannel("rxloop") : null;

let thread = null; // the thread that is shown
let following = true; // whether the newest is kept in sight

class Thread {
  constructor(id, { known }) {
    this.id = id;
    this.known = known; // whether the server has heard of it
    this.turns = new Map();
    this.streams = new Set();
    this.waiting = [];
    this.open = 0;
    this.sending = false;
    this.sent = null; // what becomes of the prompt that was sent last
    this.stopping = false;
    this.closed = false;
    this.down = new Set();
  }

  get running() {
    return [...this.turns.values()].some((view) => view.running);
  }

  close() {
    this.closed = true;
    this.waiting = [];
    for (const stream of this.streams) stream.close();
  }

  /** Take up what the server has of it that is not shown yet. */
  async refresh() {
    if (!this.known || this.sending || this.closed) return;
    let response;
    try {
      response = await fetch(`threads/${encodeURIComponent(this.id)}`);
    } catch {
      if (!this.closed) connection("The server does not answer. Trying again…");
      return;
    }
    if (this.closed || this.sending) return;
    if (!this.down.size) connection("");
    if (response.status === 404) {
      this.known = false;
      if (!this.turns.size) notice("The server does not know this conversation any more. What you send starts it anew.");
      return;
    }
    if (!response.ok) {
      connection((await failureOf(response)).message);
      return;
    }
    let turns;
    try {
      ({ turns } = await response.json());
    } catch {
      if (!this.closed) connection("The server's answer could not be read. Trying again…");
      return;
    }
    if (this.closed || this.sending) return;
    for (const { turn_id: id, prompt, running } of turns) {
      if (!this.turns.has(id)) this.#watch(id, this.add(id, prompt, running), running);
    }
    update();
  }

  add(id, prompt, news) {
    const view = new TurnView({ number: this.turns.size + 1, prompt, news }, (text) => send(text));
    this.turns.set(id, view);
    page.log.append(view.root);
    page.welcome.hidden = true;
    if (this.turns.size === 1) document.title = `${prompt.slice(0, 60)} · rxloop`;
    keepInSight();
    return view;
  }

  /** Send a prompt. Returns whether the server took it. */
  async ask(prompt) {
    this.sending = true;
    const draft = `draft ${this.turns.size}`;
    const view = this.add(draft, prompt, true);
    update();
    this.sent = this.#post(prompt, draft, view);
    const failure = await this.sent;
    this.sending = false;
    if (failure) {
      this.turns.delete(draft);
      view.root.remove();
      if (!this.closed) {
        notice(failure.message);
        if (!this.turns.size) welcome();
      }
      // 409: another page was quicker
      this.refresh();
    } else if (this.closed) {
      hear(this.id);
    }
    update();
    return !failure;
  }

  async #post(prompt, draft, view) {
    const body = {
      threadId: this.id,
      runId: identifier("run"),
      state: {},
      messages: [{ id: identifier("message"), role: "user", content: prompt }],
      tools: [],
      context: [],
      forwardedProps: {},
    };
    let response;
    try {
      response = await fetch("turns?format=rxloop", {
        method: "POST",
        headers: { "Accept": "application/json", "Content-Type": "application/json" },
        body: JSON.stringify(body),
      });
      if (!response.ok) return await failureOf(response);
      const { turn_id: id } = await response.json();
      this.turns.delete(draft);
      this.turns.set(id, view);
      this.known = true;
      if (!this.closed) this.#watch(id, view, true);
      neighbours?.postMessage({ thread: this.id });
      return null;
    } catch (error) {
      return { message: `The server could not be reached (${error.message}).` };
    }
  }

  async stop() {
    this.stopping = true;
    update();
    // a turn that the server has not taken yet has no id
    await this.sent;
    for (const [id, view] of this.turns) {
      if (!view.running) continue;
      try {
        const response = await fetch(`turns/${encodeURIComponent(id)}/stop`, { method: "POST" });
        if (!response.ok && !this.closed) notice((await failureOf(response)).message);
      } catch (error) {
        if (!this.closed) notice(`The turn could not be stopped (${error.message}).`);
      }
    }
    this.stopping = false;
    update();
  }

  #watch(id, view, running) {
    // the newest first: it may be running
    this.waiting.push([id, view, running]);
    this.#openNext();
  }

  #openNext() {
    while (this.open < AT_ONCE && this.waiting.length) {
      const [id, view, running] = this.waiting.pop();
      this.open += 1;
      const watcher = {
        receive: (event, arrival) => view.receive(event, arrival),
        paint: () => {
          view.paint();
          if (view.source) page.model.textContent = view.source;
          keepInSight();
        },
        over: () => this.#done(stream, view),
        lost: () => {
          view.lose(running);
          this.#done(stream, view);
        },
        connection: (up) => {
          if (up) this.down.delete(id);
          else this.down.add(id);
          connection(this.down.size ? "The connection is lost. Trying again…" : "");
        },
      };
      const stream = new TurnStream(id, watcher, running ? ATTEMPTS : 1);
      this.streams.add(stream);
    }
  }

  #done(stream, view) {
    if (!this.streams.delete(stream)) return;
    this.open -= 1;
    this.#openNext();
    if (view.news && view.announcement) announce(view.announcement);
    update();
  }
}

/** Show what follows from the state of the thread. */
function update() {
  const busy = thread.running || thread.sending;
  page.send.hidden = busy;
  page.stop.hidden = !busy;
  page.stop.disabled = thread.stopping;
  page.stop.textContent = thread.stopping ? "Stopping…" : "Stop";
  page.log.setAttribute("aria-busy", String(busy));
  keepInSight();
}

async function send(text) {
  const prompt = text.trim();
  if (!prompt) return;
  if (thread.running || thread.sending) {
    announce("A turn is running. Stop it first, or wait.");
    return;
  }
  notice("");
  following = true;
  page.prompt.value = "";
  fit();
  page.prompt.focus();
  history.replaceState(null, "", `#thread=${encodeURIComponent(thread.id)}`);
  const taken = await thread.ask(prompt);
  if (!taken && !page.prompt.value) {
    page.prompt.value = prompt;
    fit();
  }
}

function stop() {
  if (!thread.running || thread.stopping) return;
  thread.stop();
  page.prompt.focus();
}

/** There is news of a thread. */
function hear(id) {
  if (id !== thread.id) return;
  if (!thread.known) notice("");
  thread.known = true;
  thread.refresh();
}

/** Show a thread that has no turns. */
function welcome() {
  page.welcome.hidden = false;
  document.title = "rxloop";
}

/** Show the thread of the address, or a new one. */
function show() {
  const named = new URLSearchParams(location.hash.slice(1)).get("thread");
  if (thread && thread.id === named) return;
  thread?.close();
  page.log.replaceChildren();
  welcome();
  notice("");
  connection("");
  following = true;
  thread = new Thread(named || identifier("thread"), { known: Boolean(named) });
  thread.refresh();
  update();
}

async function failureOf(response) {
  const wait = response.headers.get("Retry-After");
  const later = wait ? ` Try again in ${wait} s.` : "";
  try {
    const { error } = await response.json();
    return { message: `${sentence(error.message)}${later}` };
  } catch {
    return { message: `The server answered with HTTP ${response.status}.${later}` };
  }
}

function notice(text) {
  page.notice.textContent = text;
  page.notice.hidden = !text;
}

function connection(text) {
  write(page.connection, text);
}

function announce(text) {
  page.announcer.textContent = text.length > ANNOUNCED ? `${text.slice(0, ANNOUNCED)} …` : text;
}

function identifier(kind) {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `${kind}-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Whether a key is the input method's; Safari tells of the one that ends a composition by its code alone. */
function composing(event) {
  return event.isComposing || event.keyCode === 229;
}

/** The field is as high as what is written in it. */
function fit() {
  page.prompt.style.height = "auto";
  page.prompt.style.height = `${Math.min(page.prompt.scrollHeight, window.innerHeight * 0.4)}px`;
}

function keepInSight() {
  if (following) page.scroller.scrollTop = page.scroller.scrollHeight;
}

async function suggest() {
  try {
    const response = await fetch("page/settings.json");
    if (!response.ok) return;
    const { provider, model, suggestions } = await response.json();
    if (provider) page.model.textContent = sourceOf(provider, model);
    for (const { title, prompt } of suggestions) {
      const button = element("button", "suggestion");
      button.type = "button";
      button.append(element("strong", "", title), element("span", "", prompt));
      button.addEventListener("click", () => send(prompt));
      const item = element("li");
      item.append(button);
      page.suggestions.append(item);
    }
  } catch {
    // the page is whole without suggestions
  }
}

page.composer.addEventListener("submit", (event) => {
  event.preventDefault();
  send(page.prompt.value);
});
page.prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || composing(event)) return;
  event.preventDefault();
  send(page.prompt.value);
});
page.prompt.addEventListener("input", fit);
page.stop.addEventListener("click", stop);
page["new-chat"].addEventListener("click", () => {
  history.pushState(null, "", location.pathname + location.search);
  show();
  page.prompt.focus();
});
page.scroller.addEventListener("scroll", () => {
  const { scrollTop, clientHeight, scrollHeight } = page.scroller;
  following = scrollHeight - scrollTop - clientHeight < NEAR;
}, { passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !composing(event)) stop();
});
// its address would be that of another thread
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  page.prompt.focus();
});
window.addEventListener("hashchange", show);
window.addEventListener("popstate", show);
window.addEventListener("focus", () => thread.refresh());
window.addEventListener("resize", keepInSight);
document.addEventListener("visibilitychange", () => document.hidden || thread.refresh());
neighbours?.addEventListener("message", ({ data }) => hear(data?.thread));
setInterval(() => document.hidden || thread.refresh(), POLL);

show();
suggest();
page.prompt.focus({ preventScroll: true });
