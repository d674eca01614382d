/** A turn as marbles on lines, over time; drawn into an SVG that moves while the turn runs. */

const SVG = "http://www.w3.org/2000/svg";
const TOP = 26;
const ROW = 38;
const MARGIN = 8;
const MOST_MARKS = 600;
const SHORTEST = 2;
const APART = 7.5; // pixels between two marbles of a lane
const RANKS = { step: 0, reasoning: 1, text: 2, call: 3, trouble: 4, usage: 5 };
const EXPLAINED = {
  asked: "arguments",
  ran: "running",
  failed: "failed",
  stopped: "stopped",
  wait: "waiting to retry",
};
const TOLD = { asked: "arguments came", ran: "ran", failed: "ended with an error", stopped: "was stopped" };
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600];

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Timeline {
  #svg;
  #axis;
  #scaled; // its unit is a second across and a pixel down, so that moving it is one attribute
  #overlay;
  #words;
  #title;
  #legend;
  #explained = new Set();
  #lanes = new Map();
  #spans = new Map(); // what has begun and not ended
  #labels = [];
  #ticks = [];
  #ended = null;
  #width = 320;
  #shown = 0;
  #changed = true;

  /**
   * @param {HTMLElement} host holds the drawing.
   * @param {HTMLElement} words holds the same in words.
   */
  constructor(host, words) {
    this.#words = words;
    this.#svg = draw("svg", { class: "marbles", role: "img", focusable: "false" });
    this.#title = draw("title", {});
    this.#axis = draw("g", { class: "axis" });
    this.#scaled = draw("g", {});
    this.#overlay = draw("g", { class: "overlay" });
    this.#svg.append(this.#title, this.#axis, this.#scaled, this.#overlay);
    this.#legend = document.createElement("ul");
    this.#legend.className = "legend";
    this.#legend.setAttribute("aria-label", "Colours of the timeline");
    this.#legend.hidden = true;
    host.append(this.#svg, this.#legend);
    new ResizeObserver(([entry]) => {
      // it is folded
      if (!entry.contentRect.width) return;
      this.#width = Math.max(120, Math.round(entry.contentRect.width));
      this.#changed = true;
      this.paint(this.#shown);
    }).observe(host);
  }

  /** A marble. */
  mark(kind, seconds, lane = kind, label = lane) {
    const row = this.#lane(kind, lane, label);
    row.last = Math.max(row.last, seconds);
    row.first = Math.min(row.first, seconds);
    row.count += 1;
    // what no screen could tell apart is one marble
    if (row.marks.length && seconds - row.marks.at(-1) < row.gap) return;
    row.marks.push(seconds);
    if (row.marks.length > MOST_MARKS) {
      row.gap = Math.max(row.gap * 2, seconds / MOST_MARKS);
      const all = row.marks;
      row.marks = [];
      for (const moment of all) if (!row.marks.length || moment - row.marks.at(-1) >= row.gap) row.marks.push(moment);
    }
    row.dirty = true;
  }

  /** Something that lasts begins; `end` tells when it is over. */
  begin(key, kind, seconds, lane, label, style) {
    const row = this.#lane(kind, lane, label);
    const path = draw("path", { class: `span ${style}`, "vector-effect": "non-scaling-stroke" });
    row.group.append(path);
    this.#explain(style);
    this.#spans.set(key, { path, row, began: seconds, style });
    this.#stretch(this.#spans.get(key), seconds);
  }

  /** It is over; `style` tells how, where it is not as it began. */
  end(key, seconds, style) {
    const span = this.#spans.get(key);
    if (!span) return;
    this.#spans.delete(key);
    if (style) span.path.setAttribute("class", `span ${(span.style = style)}`);
    this.#explain(span.style);
    this.#stretch(span, seconds);
    span.row.told.push({ began: span.began, ended: seconds, style: span.style });
  }

  /** A wait that is known beforehand. */
  wait(seconds, length, lane, label) {
    const row = this.#lane("trouble", lane, label);
    const path = draw("path", { class: "span wait", "vector-effect": "non-scaling-stroke" });
    path.setAttribute("d", `M${seconds} 0H${seconds + length}`);
    row.group.prepend(path);
    this.#explain("wait");
  }

  /** Words at a moment. */
  say(seconds, text, lane = "usage") {
    const row = this.#lane("usage", lane, lane);
    const element = draw("text", { class: "figure" });
    element.textContent = text;
    this.#overlay.append(element);
    this.#labels.push({ element, row, seconds });
    row.said = text;
    this.#changed = true;
  }

  /** The turn is over: a line as marbles end, or a cross. */
  finish(seconds, failed) {
    for (const [key, span] of [...this.#spans]) this.end(key, seconds, span.style === "step" ? "step" : "stopped");
    const line = draw("path", { class: failed ? "end failed" : "end" });
    this.#overlay.append(line);
    this.#ended = { seconds, failed, line };
    this.#changed = true;
    this.paint(seconds);
    this.describe(seconds);
  }

  /** Show what there is at this moment of the turn. */
  paint(seconds) {
    this.#shown = seconds;
    for (const span of this.#spans.values()) this.#stretch(span, Math.max(seconds, span.began));
    let domain = this.#ended ? Math.max(this.#ended.seconds, 0.05) : Math.max(seconds, SHORTEST);
    // whoever wants no motion sees it move in few steps
    if (!this.#ended && calm.matches) domain = SHORTEST * 2 ** Math.ceil(Math.log2(domain / SHORTEST));
    const scale = (this.#width - 2 * MARGIN) / domain;
    this.#scaled.setAttribute("transform", `translate(${MARGIN} 0) scale(${scale.toFixed(4)} 1)`);
    this.#draw(2 ** (Math.ceil(2 * Math.log2(APART / scale)) / 2));
    this.#place(domain, scale);
  }

  /** Draw the marbles, of those that would lie on each other the first; they stay where they are while the scale changes little. */
  #draw(gap) {
    for (const row of this.#lanes.values()) {
      if (!row.dirty && row.drawn === gap) continue;
      row.dirty = false;
      row.drawn = gap;
      let bucket = -1;
      let path = "";
      for (const moment of row.marks) {
        const own = Math.floor(moment / gap);
        if (own === bucket) continue;
        bucket = own;
        path += `M${moment.toFixed(3)} 0h0`;
      }
      row.path.setAttribute("d", path);
    }
  }

  /** Say in words what is drawn. */
  describe(seconds) {
    const said = [`The turn ${this.#ended ? "took" : "has run for"} ${seconds.toFixed(1)} seconds.`];
    for (const row of this.#inOrder()) {
      if (row.kind === "call") {
        for (const { began, ended, style } of row.told) {
          said.push(`${row.label}: ${TOLD[style]} from ${began.toFixed(1)} to ${ended.toFixed(1)} seconds.`);
        }
      } else if (row.kind === "usage") {
        said.push(`Tokens at the end: ${row.said}.`);
      } else if (row.kind === "trouble") {
        said.push(`${row.label}: ${row.count} at ${row.first.toFixed(1)} seconds.`);
      } else if (row.kind !== "step") {
        said.push(`${row.label}: from ${row.first.toFixed(1)} to ${row.last.toFixed(1)} seconds.`);
      }
    }
    if (this.#ended?.failed) said.push("It ended with an error.");
    this.#title.textContent = `Timeline. ${said[0]}`;
    this.#words.replaceChildren(
      ...said.map((sentence) => {
        const line = document.createElement("li");
        line.textContent = sentence;
        return line;
      }),
    );
  }

  #lane(kind, name, label) {
    const known = this.#lanes.get(name);
    if (known) return known;
    const group = draw("g", { class: `lane ${kind}` });
    const path = draw("path", { class: "marks", "vector-effect": "non-scaling-stroke" });
    const rule = draw("path", { class: "rule" });
    const text = draw("text", { class: "label", x: MARGIN });
    text.textContent = label.length > 34 ? `${label.slice(0, 33)}…` : label;
    group.append(path);
    this.#scaled.append(group);
    this.#axis.append(rule, text);
    const row = {
      kind, label, group, path, rule, text, marks: [], gap: 0.004, told: [],
      first: Infinity, last: 0, count: 0, dirty: false, drawn: 0, said: "", y: 0, order: this.#lanes.size,
    };
    this.#lanes.set(name, row);
    this.#changed = true;
    return row;
  }

  /** Name a colour that appears for the first time. */
  #explain(style) {
    if (!(style in EXPLAINED) || this.#explained.has(style)) return;
    this.#explained.add(style);
    this.#legend.replaceChildren(
      ...Object.keys(EXPLAINED).filter((name) => this.#explained.has(name)).map((name) => {
        const line = document.createElement("li");
        const swatch = document.createElement("span");
        swatch.className = `swatch ${name}`;
        line.append(swatch, EXPLAINED[name]);
        return line;
      }),
    );
    this.#legend.hidden = false;
  }

  #inOrder() {
    return [...this.#lanes.values()].sort((a, b) => RANKS[a.kind] - RANKS[b.kind] || a.order - b.order);
  }

  #stretch(span, seconds) {
    // what was quicker than a blink is a marble still
    span.path.setAttribute("d", `M${span.began.toFixed(3)} 0H${Math.max(seconds, span.began + 0.001).toFixed(3)}`);
  }

  #place(domain, scale) {
    if (this.#changed) {
      this.#changed = false;
      const rows = this.#inOrder();
      const height = TOP + ROW * rows.length + 4;
      set(this.#svg, { width: this.#width, height, viewBox: `0 0 ${this.#width} ${height}` });
      rows.forEach((row, index) => {
        row.y = TOP + ROW * index + 26;
        row.group.setAttribute("transform", `translate(0 ${row.y})`);
        row.text.setAttribute("y", row.y - 12);
        // a line would strike the figures through
        if (row.kind !== "usage") row.rule.setAttribute("d", `M${MARGIN} ${row.y}H${this.#width - MARGIN}`);
      });
    }
    this.#tick(domain, scale);
    let free = Infinity;
    for (const { element, row, seconds } of [...this.#labels].reverse()) {
      const x = Math.max(MARGIN + 7 * element.textContent.length, MARGIN + seconds * scale - 5);
      const room = x <= free;
      set(element, { x: x.toFixed(1), y: row.y + 4, display: room ? "inline" : "none" });
      if (room) free = x - 8 * element.textContent.length - 6;
    }
    if (this.#ended) {
      const x = MARGIN + this.#ended.seconds * scale;
      const bottom = TOP + ROW * this.#lanes.size;
      const cross = `M${x - 5} ${TOP - 5}l10 10m0 -10l-10 10M${x} ${TOP + 8}V${bottom}`;
      this.#ended.line.setAttribute("d", this.#ended.failed ? cross : `M${x} ${TOP}V${bottom}`);
    }
  }

  #tick(domain, scale) {
    const every = TICKS.find((length) => length * scale >= 60) ?? 7200;
    const count = Math.floor(domain / every) + 1;
    while (this.#ticks.length < count) {
      this.#ticks.push(draw("text", { class: this.#ticks.length ? "tick" : "tick first" }));
      this.#axis.append(this.#ticks.at(-1));
    }
    this.#ticks.forEach((tick, index) => {
      const moment = index * every;
      const fits = index < count && MARGIN + moment * scale < this.#width - 24;
      set(tick, { x: (MARGIN + moment * scale).toFixed(1), y: 13, display: fits ? "inline" : "none" });
      const text = every < 1 ? `${moment.toFixed(1)} s` : every < 60 ? `${moment} s` : `${moment / 60} min`;
      if (tick.textContent !== text) tick.textContent = text;
    });
  }
}

function draw(name, attributes) {
  const element = document.createElementNS(SVG, name);
  set(element, attributes);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}
