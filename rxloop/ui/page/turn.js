/** One turn on the page: what was asked, what comes of it, and its timeline. */

import { ToolCard } from "./card.js";
import { pretty } from "./json.js";
import { Prose } from "./prose.js";
import { Timeline } from "./timeline.js";
import {
  count, element, endingOf, lower, seconds, sentence, several, sourceOf, titleOf, write,
} from "./words.js";

const INSTANT = 0.05;
const UNKNOWN = "–";
const FIGURES = [
  ["input_tokens", "tokens in"],
  ["cache_read_tokens", "of which cached"],
  ["output_tokens", "tokens out"],
  ["reasoning_tokens", "of which reasoning"],
];

// where the timeline has no place of its own it is folded
const wide = matchMedia("(width >= 58rem)");
wide.addEventListener("change", () => {
  for (const fold of document.querySelectorAll(".fold")) fold.open = wide.matches;
});

export class TurnView {
  /**
   * @param {object} turn its number, its prompt, and whether its end is news: it runs.
   * @param {(prompt: string) => void} again asks the same once more.
   */
  constructor({ number, prompt, news }, again) {
    this.prompt = prompt;
    this.again = again;
    this.news = news;
    this.running = true;
    this.now = 0; // seconds of the turn at the newest event
    this.arrived = null;
    this.retry = null; // one that is waited for
    this.tokens = null;
    this.part = null;
    this.unsaid = "";
    this.cards = new Map();
    this.text = "";
    this.steps = 0;
    this.#build(number);
  }

  #build(number) {
    this.root = element("article", "turn");
    this.root.dataset.state = "running";
    this.root.setAttribute("aria-label", `Turn ${number}`);
    const talk = element("div", "talk");
    const said = element("div", "said");
    said.append(element("h2", "unseen", "You said"), element("p", "", this.prompt));
    this.answer = element("div", "answer");
    this.answer.append(element("h2", "unseen", "Answer"));
    this.working = element("p", "working");
    this.working.append(element("span", "dots"), element("span", "unseen", "Working"));
    this.ending = element("p", "ending");
    this.ending.hidden = true;
    talk.append(said, this.answer, this.working, this.ending);

    const facts = element("aside", "facts");
    facts.setAttribute("aria-label", `Timeline and usage of turn ${number}`);
    this.fold = element("details", "fold");
    this.fold.open = wide.matches;
    const head = element("summary", "facts-head");
    this.brief = element("span", "brief");
    this.elapsed = element("span", "elapsed", "0.0 s");
    this.spent = element("span", "spent");
    head.append(element("h3", "", "Timeline"), this.brief, this.elapsed, this.spent);
    const drawing = element("div", "drawing");
    const worded = element("details", "worded");
    const sentences = element("ul");
    worded.append(element("summary", "", "In words"), sentences);
    const usage = element("dl", "usage");
    this.figures = FIGURES.map(([name, label]) => {
      const figure = element("dd", "", UNKNOWN);
      figure.dataset.figure = name;
      const group = element("div");
      group.append(element("dt", "", label), figure);
      usage.append(group);
      return figure;
    });
    this.fold.append(head, drawing, usage, worded);
    facts.append(this.fold);
    this.root.append(talk, facts);
    this.timeline = new Timeline(drawing, sentences);
    worded.addEventListener("toggle", () => worded.open && this.timeline.describe(this.#clock()));
    this.fold.addEventListener("toggle", () => {
      if (!this.fold.open) return;
      this.timeline.paint(this.#clock());
      if (!wide.matches) facts.scrollIntoView({ block: "nearest" });
    });
  }

  /** Take in one event. */
  receive(event, arrival) {
    this.#advance(event, arrival);
    if (this.retry) this.#retried(event.type !== "turn_finished" && event.type !== "error");
    if (event.type !== "text_delta" && event.type !== "reasoning_delta") this.#say();
    this[`on_${event.type}`]?.(event);
  }

  /** Show what came since the last time. */
  paint() {
    this.#say();
    if (!this.running) return;
    const moment = this.#clock();
    for (const card of this.cards.values()) card.paint(moment);
    if (this.fold.open) this.timeline.paint(moment);
    if (this.retry) write(this.retry.note, this.#waiting(moment));
    write(this.elapsed, `${moment.toFixed(1)} s`);
    write(this.brief, this.#doing());
  }

  /** The stream is gone for good, and the turn's end was not seen. */
  lose(ran) {
    if (!this.running) return;
    if (!ran) {
      this.ending.append("The server no longer has this turn. ", this.#asking());
      this.ending.hidden = false;
      this.#end("gone");
      return;
    }
    this.#fail("The server no longer has this turn", "What is above is all that came.", true);
  }

  on_turn_started(event) {
    this.source = sourceOf(event.provider, event.model);
  }

  on_step_started(event) {
    this.steps = event.step + 1;
    this.#leave();
    this.timeline.mark("step", this.now, "steps");
    this.timeline.begin(`step ${event.step}`, "step", this.now, "steps", "steps", "step");
  }

  on_step_finished(event) {
    this.#leave();
    this.timeline.end(`step ${event.step}`, this.now);
  }

  on_text_delta(event) {
    this.#speak("prose", event.text);
    this.text += event.text;
    this.timeline.mark("text", this.now);
  }

  on_reasoning_delta(event) {
    this.#speak("reasoning", event.text);
    this.timeline.mark("reasoning", this.now);
  }

  on_tool_call_started(event) {
    this.#card(event);
    this.timeline.begin(`${key(event)} arguments`, "call", this.now, key(event), event.name, "asked");
  }

  on_tool_call_delta(event) {
    this.cards.get(key(event))?.argue(event.arguments);
  }

  on_tool_call(event) {
    this.#card(event).settle(event.arguments);
    this.timeline.end(`${key(event)} arguments`, this.now);
  }

  on_tool_started(event) {
    this.#card(event).start(this.now);
    this.timeline.begin(key(event), "call", this.now, key(event), event.name, "ran");
  }

  on_tool_progress(event) {
    this.#card(event).progress(event.data);
  }

  on_tool_finished(event) {
    this.#card(event).finish(event);
    this.timeline.end(key(event), this.now, event.error === null ? "ran" : "failed");
  }

  on_retry_scheduled(event) {
    const failed = `Attempt ${event.attempt} failed: ${lower(titleOf(event.error))}.`;
    const note = this.#note("", event.error?.message && sentence(event.error.message));
    this.retry = { failed, note, due: this.now + event.delay, delay: event.delay };
    note.textContent = this.#waiting(this.now);
    this.timeline.mark("trouble", this.now, "retries");
    this.timeline.wait(this.now, event.delay, "retries", "retries");
  }

  on_malformed_retried() {
    this.#note("The model's call was malformed. It is asked once more.");
    this.timeline.mark("trouble", this.now, "retries");
  }

  on_context_reclaimed(event) {
    const [before, after] = [count(event.before_tokens), count(event.after_tokens)];
    this.#note(`The history was shortened from ${before} to ${after} tokens.`);
    this.timeline.mark("trouble", this.now, "history");
  }

  on_usage_updated(event) {
    this.#count(event.usage, true);
    this.timeline.say(this.now, count(event.usage.input_tokens + event.usage.output_tokens));
  }

  on_turn_finished(event) {
    this.#count(event.usage);
    this.#leave();
    if (!this.text && event.text) {
      this.#speak("prose", event.text);
      this.#leave();
    }
    this.text = event.text || this.text;
    if (event.output !== null && event.output !== undefined) {
      const box = element("pre", "output", pretty(event.output));
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", "Structured answer");
      this.answer.append(box);
    }
    const words = endingOf(event.finish_reason);
    this.ending.textContent = words;
    this.ending.hidden = !words;
    this.#end(event.finish_reason === "aborted" ? "stopped" : "done");
    this.announcement = [words, this.text].filter(Boolean).join(" ");
  }

  on_error(event) {
    if (event.usage) this.#count(event.usage);
    this.#fail(titleOf(event.error), sentence(event.error?.message ?? ""), event.error?.retryable);
  }

  #fail(title, message, retryable) {
    this.#leave();
    const alert = element("div", "failure");
    // what failed long ago is no news
    if (this.news) alert.setAttribute("role", "alert");
    alert.append(element("strong", "", title));
    if (message) alert.append(element("p", "", message));
    if (retryable) alert.append(this.#asking());
    this.answer.append(alert);
    this.#end("failed");
  }

  #asking() {
    const button = element("button", "quiet", "Ask again");
    button.type = "button";
    button.addEventListener("click", () => this.again(this.prompt));
    return button;
  }

  #end(state) {
    if (this.retry) this.#retried(false);
    this.running = false;
    this.root.dataset.state = state;
    this.working.hidden = true;
    for (const card of this.cards.values()) {
      card.paint(this.now);
      card.abandon(state === "stopped");
    }
    this.elapsed.textContent = seconds(this.now);
    this.brief.textContent = this.cards.size ? several(this.cards.size, "call") : "";
    this.timeline.finish(this.now, state === "failed");
  }

  /** The turn's own time, as the server tells it; where it does not, the time between arrivals. */
  #advance(event, arrival) {
    const gap = this.arrived === null ? 0 : (arrival - this.arrived) / 1000;
    this.arrived = arrival;
    this.now = Number.isFinite(event.time) ? Math.max(this.now, event.time) : this.now + gap;
  }

  #clock() {
    if (!this.running || this.arrived === null) return this.now;
    return this.now + Math.max(0, (performance.now() - this.arrived) / 1000);
  }

  /** Show figures of usage; at an end zeros say only that none has come. */
  #count(usage, reported = false) {
    if (!reported && this.tokens === null && !FIGURES.some(([name]) => usage[name])) return;
    FIGURES.forEach(([name], index) => {
      this.figures[index].textContent = count(usage[name]);
    });
    this.tokens = usage.input_tokens + usage.output_tokens;
    this.spent.textContent = several(this.tokens, "token");
  }

  /** What goes on, in a word. */
  #doing() {
    if (this.retry) return "waiting to retry";
    const busy = [...this.cards.values()].filter((card) => card.busy);
    if (busy.length) return busy.length === 1 ? busy[0].name : several(busy.length, "tool");
    return { prose: "text", reasoning: "reasoning", tools: "arguments" }[this.part?.kind] ?? "";
  }

  #waiting(moment) {
    const left = this.retry.due - moment;
    return `${this.retry.failed} Trying again${left > 0 ? ` in ${left.toFixed(1)} s.` : "…"}`;
  }

  #retried(happened) {
    const { note, failed, delay } = this.retry;
    this.retry = null;
    note.textContent = `${failed} ${happened ? `Retried after ${seconds(delay)}.` : "Not retried."}`;
  }

  /** Add to the text that is being said; it is shown with the next frame. */
  #speak(kind, text) {
    if (this.part?.kind !== kind) {
      this.#leave();
      this.part = kind === "prose" ? this.#prose() : this.#reasoning();
    }
    this.unsaid += text;
  }

  #prose() {
    const root = element("div", "prose");
    this.answer.append(root);
    return { kind: "prose", writer: new Prose(root) };
  }

  #reasoning() {
    const root = element("details", "reasoning");
    root.dataset.state = "running";
    const title = element("summary", "", "Reasoning");
    const body = element("div", "thoughts");
    root.append(title, body);
    this.answer.append(root);
    return { kind: "reasoning", root, title, began: this.now, writer: new Prose(body) };
  }

  #say() {
    if (!this.unsaid) return;
    this.part.writer.append(this.unsaid);
    this.unsaid = "";
  }

  /** What follows is something else. */
  #leave() {
    this.#say();
    const part = this.part;
    this.part = null;
    part?.writer?.end();
    if (part?.kind !== "reasoning") return;
    part.root.dataset.state = "done";
    const took = this.now - part.began;
    part.title.textContent = took < INSTANT ? "Reasoned" : `Reasoned for ${seconds(took)}`;
  }

  #card(event) {
    const known = this.cards.get(key(event));
    if (known) return known;
    if (this.part?.kind !== "tools") {
      this.#leave();
      this.part = { kind: "tools", root: element("div", "tools") };
      this.answer.append(this.part.root);
    }
    const card = new ToolCard(event.name);
    this.part.root.append(card.root);
    this.cards.set(key(event), card);
    return card;
  }

  #note(text, detail) {
    this.#leave();
    const note = element("p", "note");
    const words = element("span", "", text);
    note.append(words);
    if (detail) note.append(element("span", "detail", detail));
    this.answer.append(note);
    return words;
  }
}

function key(event) {
  return `${event.step} ${event.call_id}`;
}
