/** The questions and answers on the page. */
export class Conversation {
  #element;
  #words;
  #follows = true;
  #top = 0;

  constructor(element, words) {
    this.#element = element;
    this.#words = words;
    element.addEventListener("scroll", () => {
      // Whoever scrolls up wants to read; whoever is at the end wants to see what comes. Growing is not scrolling.
      if (element.scrollTop < this.#top) this.#follows = false;
      if (element.scrollHeight - element.scrollTop - element.clientHeight < 40) this.#follows = true;
      this.#top = element.scrollTop;
    });
  }

  question(text) {
    document.getElementById("welcome").hidden = true;
    const article = this.#article("question", "you");
    article.querySelector(".text").textContent = text;
    this.#follows = true;
    this.follow();
  }

  answer() {
    return new Answer(this.#article("answer", "answer"), this.#words, () => this.follow());
  }

  clear() {
    this.#element.querySelectorAll("article").forEach((article) => article.remove());
    document.getElementById("welcome").hidden = false;
  }

  /** Stay at the end, if that is where the reader is. */
  follow() {
    if (this.#follows) this.#element.scrollTop = this.#element.scrollHeight;
  }

  #article(kind, word) {
    const article = document.createElement("article");
    article.className = kind;
    const heading = document.createElement("h2");
    this.#words.put(heading, word);
    const text = document.createElement("div");
    text.className = "text";
    text.dir = "auto";
    article.append(heading, text);
    this.#element.append(article);
    return article;
  }
}

/** One answer: its text as it grows, how it stands, and what went wrong. */
class Answer {
  #article;
  #words;
  #follow;
  #text = document.createTextNode("");
  #reasoning = null;
  #state = line("state");
  #facts = line("facts");
  #failure = null;
  #countdown = null;
  #drawing = false;

  constructor(article, words, follow) {
    this.#article = article;
    this.#words = words;
    this.#follow = follow;
    article.querySelector(".text").append(this.#text);
    article.append(this.#state, this.#facts);
  }

  /** From here on it is being made; what was there of an earlier try goes, unless it is gone on with. */
  begin(anew) {
    this.settle();
    if (anew) {
      this.#text.data = "";
      this.#reasoning?.parentElement.remove();
      this.#reasoning = null;
    }
    this.#words.clear(this.#facts);
    this.#article.setAttribute("aria-busy", "true");
  }

  write(text) {
    this.#text.appendData(text);
    this.#draw();
  }

  think(text) {
    if (!this.#reasoning) {
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      this.#words.put(summary, "thinking");
      this.#reasoning = document.createTextNode("");
      details.append(summary, this.#reasoning);
      this.#article.querySelector(".text").before(details);
    }
    this.#reasoning.appendData(text);
    this.#draw();
  }

  state(word, ...values) {
    if (word) this.#words.put(this.#state, word, ...values);
    else this.#words.clear(this.#state);
    this.#draw();
  }

  /** @param facts - names and values of what to tell, in order. */
  end(facts) {
    this.#article.setAttribute("aria-busy", "false");
    this.#facts.replaceChildren(
      ...facts.flatMap(([word, ...values], index) => {
        const fact = document.createElement("span");
        this.#words.put(fact, word, ...values);
        return index > 0 ? [" · ", fact] : [fact];
      }),
    );
    this.#draw();
  }

  /** @param actions - names of buttons, and what they do. */
  fail(problem, actions) {
    this.#failure = document.createElement("div");
    this.#failure.className = "failure";
    const what = line("what");
    what.setAttribute("role", "alert");
    const detail = line("detail");
    const { message, requestId } = problem.detail;
    detail.textContent = requestId ? `${message} (${requestId})` : message;
    const buttons = document.createElement("div");
    buttons.className = "actions";
    buttons.append(...actions.map(([word, act]) => this.#button(word, act)));
    this.#failure.append(what, detail, buttons);
    this.#article.append(this.#failure);
    // Into an element that is on the page already: that is what screen readers listen to.
    this.#words.put(what, problem.word, ...problem.values);
    if (problem.wait > 0) this.#countDown(problem.wait, buttons);
    this.#draw();
  }

  /** Nothing can be done about this failure any more, or it is being done. */
  settle() {
    clearInterval(this.#countdown);
    this.#failure?.remove();
    this.#failure = null;
  }

  #button(word, act) {
    const button = document.createElement("button");
    button.type = "button";
    this.#words.put(button, word);
    button.addEventListener("click", act);
    return button;
  }

  // Outside of the alert, or a screen reader would say every second.
  #countDown(seconds, buttons) {
    const remaining = document.createElement("span");
    const until = Date.now() + seconds * 1000;
    const tick = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      for (const button of buttons.querySelectorAll("button")) button.disabled = left > 0;
      if (left > 0) this.#words.put(remaining, "wait", left);
      else {
        clearInterval(this.#countdown);
        remaining.remove();
      }
    };
    buttons.append(remaining);
    this.#countdown = setInterval(tick, 250);
    tick();
  }

  #draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#follow();
    });
  }
}

function line(name) {
  const paragraph = document.createElement("p");
  paragraph.className = name;
  return paragraph;
}
