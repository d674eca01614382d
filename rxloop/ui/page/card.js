/** A tool call: its name, its arguments as they stream, its progress, and what came of it. */

import { StreamedJson, pretty } from "./json.js";
import { capital, count, element, seconds, several, write } from "./words.js";

// what the bar shows is not told again
const COUNTED = new Set(["done", "total", "percent"]);

export class ToolCard {
  constructor(name) {
    this.name = name;
    this.root = element("details", "tool");
    this.root.open = true;
    this.root.dataset.state = "asking";
    const summary = element("summary");
    this.state = element("span", "state");
    this.state.setAttribute("aria-hidden", "true");
    this.took = element("span", "took", "requested");
    summary.append(this.state, element("span", "name", name), this.took);
    this.body = element("div", "body");
    this.root.append(summary, this.body);
    this.streamed = new StreamedJson();
    this.fragments = "";
    this.updates = 0;
    this.report = undefined;
  }

  get busy() {
    return this.root.dataset.state === "running";
  }

  argue(fragment) {
    this.fragments += fragment;
  }

  /** The arguments are whole. */
  settle(args) {
    this.fragments = "";
    this.#box("arguments", "Arguments").textContent = pretty(args);
  }

  start(moment) {
    this.root.dataset.state = "running";
    this.began = moment;
  }

  progress(data) {
    this.updates += 1;
    this.report = data;
  }

  finish(event) {
    const failed = event.error !== null && event.error !== undefined;
    this.began = undefined;
    this.root.dataset.state = failed ? "failed" : "done";
    this.took.textContent = `${failed ? "failed" : "done"} · ${seconds(event.seconds)}`;
    this.#paintProgress();
    if (failed) {
      const box = this.#box("error", event.permanently_failed ? "Error, given up" : "Error");
      box.textContent = capital(pretty(event.error));
    } else {
      this.#box("result", "Result").textContent = pretty(event.output);
    }
  }

  /** The turn is over, and nothing will come. */
  abandon(stopped) {
    if (this.root.dataset.state !== "asking" && this.root.dataset.state !== "running") return;
    this.began = undefined;
    this.root.dataset.state = "stopped";
    this.took.textContent = stopped ? "stopped" : "not finished";
  }

  paint(moment) {
    if (this.fragments) {
      const box = this.#box("arguments", "Arguments");
      box.append(document.createTextNode(this.streamed.feed(this.fragments)));
      this.fragments = "";
    }
    if (this.began !== undefined) write(this.took, `running · ${seconds(Math.max(0, moment - this.began))}`);
    this.#paintProgress();
  }

  #paintProgress() {
    if (this.report === undefined) return;
    const data = this.report;
    this.report = undefined;
    if (!this.bar) {
      this.bar = element("progress");
      this.bar.setAttribute("aria-label", `Progress of ${this.name}`);
      this.told = element("p", "told");
      this.counted = element("span", "counted");
      const part = element("div", "part progress");
      part.append(this.bar, this.told, this.counted);
      this.body.append(part);
    }
    const done = fraction(data);
    this.bar.hidden = done === null;
    if (done !== null) this.bar.value = done;
    this.told.textContent = words(data).slice(0, 300);
    this.counted.textContent = extent(data) || several(this.updates, "update");
  }

  #box(kind, title) {
    let box = this.body.querySelector(`:scope > .${kind} > pre`);
    if (!box) {
      const part = element("div", `part ${kind}`);
      box = element("pre");
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", `${title} of ${this.name}`);
      part.append(element("h4", "", title), box);
      this.body.append(part);
    }
    return box;
  }
}

/** How far a report says that its tool is, from 0 to 1; null where it does not tell. */
function fraction(data) {
  if (typeof data !== "object" || data === null) return null;
  const { done, total, percent } = data;
  if (typeof done === "number" && typeof total === "number" && total > 0) return Math.min(1, Math.max(0, done / total));
  return typeof percent === "number" ? Math.min(1, Math.max(0, percent / 100)) : null;
}

/** How far that is, in figures. */
function extent(data) {
  if (fraction(data) === null) return "";
  const { done, total, percent } = data;
  return typeof done === "number" && typeof total === "number" ? `${count(done)} of ${count(total)}` : `${count(percent)}%`;
}

/** A report on one line. */
function words(data) {
  if (typeof data !== "object" || data === null) return String(data);
  return Object.entries(data)
    .filter(([name]) => fraction(data) === null || !COUNTED.has(name))
    .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(" · ");
}
