/** The model's text as it streams: paragraphs, lists, code, bold; made of DOM nodes alone, appended and never redrawn. */

const INLINE = /\*\*([^*\n]+)\*\*|`([^`\n]+)`/g;
const HEADING = /^#{1,6} +(?=\S)/;
const ITEM = /^ {0,6}[-*] +(?=\S)/;
const FENCE = /^ {0,3}```\s*([\w+#.-]*)\s*$/;
// what may still become a heading, an item or a fence
const UNDECIDED = /^ {0,6}(#{0,6}|[-*]?|`{0,2}) *$|^ {0,3}```[^`]*$/;
const UNDECIDED_CODE = /^ {0,3}`{0,3}\s*$/;
// a paragraph is laid out as a whole, so that an endless one is cut at a space
const LONG_LINE = 4000;

export class Prose {
  #root;
  #block = null; // the paragraph or list that the next line goes to
  #code = null; // the code of an open fence
  #line = ""; // the line that has no end yet
  #place = null; // where it is shown, once it is known what it is
  #mark = ""; // the part of it that makes it what it is

  constructor(root) {
    this.#root = root;
  }

  /** Append text, which may end anywhere. */
  append(text) {
    let start = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
      this.#grow(text.slice(start, end));
      this.#endLine();
      start = end + 1;
    }
    this.#grow(text.slice(start));
  }

  /** The text is whole: its last line is settled. */
  end() {
    if (this.#line) this.#endLine();
    this.#block = null;
    this.#code = null;
  }

  #grow(piece) {
    let rest = piece;
    while (rest) {
      const long = this.#place && !this.#code && this.#line.length + rest.length > LONG_LINE;
      const cut = long ? rest.indexOf(" ", Math.max(0, LONG_LINE - this.#line.length)) + 1 : 0;
      this.#put(cut ? rest.slice(0, cut) : rest);
      rest = cut ? rest.slice(cut) : "";
      if (cut) this.#goOnBelow();
    }
  }

  #put(piece) {
    this.#line += piece;
    if (this.#place) {
      // a node of its own: the layout of what is there already stays valid
      this.#place.append(document.createTextNode(piece));
      if (!this.#code && /[*`]/.test(piece)) this.#set();
    } else if (!(this.#code ? UNDECIDED_CODE : UNDECIDED).test(this.#line)) {
      this.#decide();
    }
  }

  #goOnBelow() {
    this.#line = this.#mark = "";
    this.#block = document.createElement("p");
    this.#block.className = "continued";
    this.#place = document.createElement("span");
    this.#block.append(this.#place);
    this.#root.append(this.#block);
  }

  #endLine() {
    const fence = this.#place && this.#place !== this.#code ? null : FENCE.exec(this.#line);
    if (this.#code && fence && !fence[1]) {
      this.#code = this.#block = null;
    } else if (this.#code) {
      this.#code.append(document.createTextNode(this.#place ? "\n" : `${this.#line}\n`));
    } else if (fence) {
      this.#openCode(fence[1]);
    } else if (this.#line.trim()) {
      if (!this.#place) this.#decide();
    } else {
      this.#block = null;
    }
    this.#line = this.#mark = "";
    this.#place = null;
  }

  /** Show the line for the first time, as what it turned out to be. */
  #decide() {
    if (this.#code) {
      this.#place = this.#code;
    } else {
      this.#mark = (HEADING.exec(this.#line) ?? ITEM.exec(this.#line) ?? [""])[0];
      if (HEADING.test(this.#line)) {
        this.#place = document.createElement("p");
        this.#place.className = "heading";
        this.#root.append(this.#place);
        this.#block = null;
      } else {
        this.#place = this.#mark ? this.#inBlock("UL", "li") : this.#inBlock("P", "span");
      }
    }
    this.#place.append(document.createTextNode(this.#line.slice(this.#mark.length)));
    if (!this.#code) this.#set();
  }

  #inBlock(kind, name) {
    if (this.#block?.tagName !== kind) {
      this.#block = document.createElement(kind);
      this.#root.append(this.#block);
    } else if (name === "span") {
      this.#block.append(document.createElement("br"));
    }
    const element = document.createElement(name);
    this.#block.append(element);
    return element;
  }

  #openCode(language) {
    const frame = document.createElement("pre");
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
    this.#code = document.createElement("code");
    frame.append(this.#code);
    this.#root.append(frame);
    this.#block = null;
  }

  /** Set what is bold and what is code in the line, as far as it has come. */
  #set() {
    const text = this.#line.slice(this.#mark.length);
    if (text.includes("**") || text.includes("`")) this.#place.replaceChildren(...inline(text));
  }
}

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > end) nodes.push(document.createTextNode(text.slice(end, match.index)));
    const element = document.createElement(match[1] === undefined ? "code" : "strong");
    element.textContent = match[1] ?? match[2];
    nodes.push(element);
    end = match.index + match[0].length;
  }
  if (end < text.length) nodes.push(document.createTextNode(text.slice(end)));
  return nodes;
}
