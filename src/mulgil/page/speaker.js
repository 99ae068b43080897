// A screen reader that is told of every token says nothing that can be followed: it is told sentences.
const PAUSE = 1_500;
const KEPT = 20;

/** Says an answer to screen readers, some sentences at a time. */
export class Speaker {
  #element;
  #unsaid = "";
  #timer = null;

  constructor(element) {
    this.#element = element;
  }

  /** More of the answer. */
  add(text) {
    this.#unsaid += text;
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#say(lengthOfSentences(this.#unsaid));
    }, PAUSE);
  }

  /** The rest of the answer, and a remark. */
  end(remark) {
    this.forget(false);
    this.#say(this.#unsaid.length);
    this.remark(remark);
  }

  /** Something that is no part of the answer. */
  remark(text) {
    if (!text) return;
    const line = document.createElement("p");
    line.textContent = text;
    this.#element.append(line);
    while (this.#element.childElementCount > KEPT) this.#element.firstElementChild.remove();
  }

  /** What has not been said is not said any more. */
  forget(all = true) {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (all) this.#unsaid = "";
  }

  #say(length) {
    this.remark(this.#unsaid.slice(0, length).trim());
    this.#unsaid = this.#unsaid.slice(length);
  }
}

function lengthOfSentences(text) {
  const ends = [...text.matchAll(/[.!?…][)"'”’]*\s|[。！？]|\n/g)];
  const last = ends.at(-1);
  return last ? last.index + last[0].length : 0;
}
