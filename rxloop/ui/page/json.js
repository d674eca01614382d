/** JSON for reading: as it streams, piece by piece, and whole. */

const LONGEST = 20_000;

/** Indents JSON while it arrives; what is no JSON passes as it is. */
export class StreamedJson {
  #depth = 0;
  #inString = false;
  #escaped = false;
  #opened = false; // a bracket whose first member has not come

  /** The text to append for the next fragment. */
  feed(fragment) {
    let out = "";
    for (const character of fragment) {
      if (this.#inString) {
        out += character;
        if (this.#escaped) this.#escaped = false;
        else if (character === "\\") this.#escaped = true;
        else if (character === '"') this.#inString = false;
        continue;
      }
      if (/\s/.test(character)) continue;
      if (character === "}" || character === "]") {
        this.#depth = Math.max(0, this.#depth - 1);
        out += (this.#opened ? "" : this.#newLine()) + character;
        this.#opened = false;
        continue;
      }
      if (this.#opened) {
        out += this.#newLine();
        this.#opened = false;
      }
      out += character;
      if (character === '"') this.#inString = true;
      else if (character === "{" || character === "[") {
        this.#depth += 1;
        this.#opened = true;
      } else if (character === ",") out += this.#newLine();
      else if (character === ":") out += " ";
    }
    return out;
  }

  #newLine() {
    return `\n${"  ".repeat(Math.min(this.#depth, 20))}`;
  }
}

/** A value as text: JSON with indentation, text as it is; cut where nobody would read on. */
export function pretty(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "";
  if (text.length <= LONGEST) return text;
  return `${text.slice(0, LONGEST)}\n… ${(text.length - LONGEST).toLocaleString("en")} more characters`;
}
