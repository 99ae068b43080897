import { followStream, streamChat } from "./client/index.js";
import { Conversation } from "./conversation.js";
import { problemOf } from "./problems.js";
import { Speaker } from "./speaker.js";
import { Words } from "./words.js";

const KEY = "mulgil-key";
const on = (id) => document.getElementById(id);
const words = new Words();
const conversation = new Conversation(on("conversation"), words);
const speaker = new Speaker(on("spoken"));

// Questions with the answers so far; what is sent each time is all of it.
let turns = [];
let running = null;
// The answer that another key might get.
let refused = null;

/** A question on its way to its answer. */
class Turn {
  answer = "";

  constructor(question) {
    this.question = question;
    this.view = conversation.answer();
  }

  ask() {
    this.answer = "";
    this.view.begin(true);
    return this.#follow((options) => streamChat({ ...options, model: on("model").value, messages: this.#messages(), resume: true }));
  }

  goOn(position) {
    this.view.begin(false);
    return this.#follow((options) => followStream({ ...options, position }));
  }

  async #follow(open) {
    const controller = new AbortController();
    const clock = new Clock();
    const stream = open({
      key: sessionStorage.getItem(KEY) ?? undefined,
      signal: controller.signal,
      onReconnect: ({ attempt }) => this.#reconnecting(attempt),
      onResumed: () => this.#resumed(),
    });
    begin(controller);
    this.view.state("waiting");
    try {
      for await (const delta of stream) this.#take(delta, clock);
      this.#ended(stream, clock);
    } catch (error) {
      this.#failed(error, stream, clock, controller);
    } finally {
      finish(controller);
    }
  }

  #take({ text, reasoning }, clock) {
    if (!text && !reasoning) return;
    if (clock.first()) this.view.state(null);
    this.answer += text;
    if (reasoning) this.view.think(reasoning);
    if (text) {
      this.view.write(text);
      speaker.add(text);
    }
  }

  #reconnecting(attempt) {
    this.view.state("reconnecting", attempt);
    if (attempt === 1) speaker.remark(words.say("reconnecting", attempt));
  }

  #resumed() {
    this.view.state(null);
    speaker.remark(words.say("resumed"));
  }

  #ended(stream, clock) {
    const remark = { length: "cutShort", content_filter: "filtered" }[stream.finishReason] ?? null;
    this.view.state(remark);
    this.view.end(clock.facts(stream.usage));
    speaker.end(words.say(remark ?? "finished"));
  }

  #failed(error, stream, clock, controller) {
    this.view.end(clock.facts(stream.usage));
    if (controller.signal.aborted) {
      this.view.state("stopped");
      speaker.end(words.say("stopped"));
      return;
    }
    this.view.state(null);
    speaker.end(null);
    const problem = problemOf(error, sessionStorage.getItem(KEY) !== null);
    const actions = [];
    if (problem.resumable) actions.push(["resume", () => running || this.goOn(problem.resumable)]);
    if (problem.again) actions.push(["tryAgain", () => running || this.ask()]);
    this.view.fail(problem, actions);
    if (problem.key) {
      refused = this;
      openKeyForm(problem.word);
    }
  }

  #messages() {
    const before = turns.slice(0, turns.indexOf(this)).filter(({ answer }) => answer);
    return [
      ...before.flatMap(({ question, answer }) => [
        { role: "user", content: question },
        { role: "assistant", content: answer },
      ]),
      { role: "user", content: this.question },
    ];
  }
}

/** Measures one answer. */
class Clock {
  #start = performance.now();
  #first = null;

  /** Something arrived; whether it is the first. */
  first() {
    if (this.#first !== null) return false;
    this.#first = performance.now();
    return true;
  }

  facts(usage) {
    if (this.#first === null) return [];
    const facts = [["firstToken", ((this.#first - this.#start) / 1000).toFixed(2)]];
    if (usage) {
      facts.push(["tokens", usage.prompt_tokens, usage.completion_tokens]);
      const seconds = (performance.now() - this.#first) / 1000;
      if (usage.completion_tokens > 1 && seconds > 0.05) {
        facts.push(["speed", Math.round((usage.completion_tokens - 1) / seconds)]);
      }
    }
    return facts;
  }
}

function begin(controller) {
  running = controller;
  refused = null;
  speaker.forget();
  showRunning();
}

function finish(controller) {
  if (running !== controller) return;
  running = null;
  showRunning();
}

function showRunning() {
  const focused = [on("send"), on("stop")].includes(document.activeElement);
  on("send").hidden = running !== null;
  on("stop").hidden = running === null;
  // A button that goes away while it has the focus would leave the keyboard nowhere.
  if (focused) on("question").focus();
}

function send() {
  const text = on("question").value.trim();
  if (!text || running) return;
  on("question").value = "";
  fitQuestion();
  turns.forEach(({ view }) => view.settle());
  conversation.question(text);
  const turn = new Turn(text);
  turns.push(turn);
  loadModels().finally(() => turn.ask());
}

function newChat() {
  running?.abort();
  turns = [];
  refused = null;
  speaker.forget();
  conversation.clear();
  on("question").focus();
}

function fitQuestion() {
  const field = on("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

async function loadModels() {
  const select = on("model");
  if (select.options.length > 0) return;
  try {
    const answer = await fetch("/v1/models", { cache: "no-store" });
    const { data } = await answer.json();
    select.replaceChildren(...data.map(({ id }) => new Option(id, id)));
    select.disabled = data.length === 0;
  } catch {
    speaker.remark(words.say("noModels"));
  }
}

function openKeyForm(problem) {
  on("key-form").hidden = false;
  on("key-button").setAttribute("aria-expanded", "true");
  on("key").value = sessionStorage.getItem(KEY) ?? "";
  on("key").setAttribute("aria-invalid", String(Boolean(problem)));
  if (problem) words.put(on("key-problem"), problem);
  else words.clear(on("key-problem"));
  on("key").focus();
  on("key").select();
}

function closeKeyForm() {
  on("key-form").hidden = true;
  on("key-button").setAttribute("aria-expanded", "false");
  on("question").focus();
}

function saveKey() {
  const key = on("key").value.trim();
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  closeKeyForm();
  if (refused && !running) refused.ask();
}

on("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
on("question").addEventListener("input", fitQuestion);
on("question").addEventListener("keydown", (event) => {
  // Enter also ends the composition of a Korean syllable: then it is not meant to send. (229: older Safari.)
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  send();
});
on("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (running) running.abort();
  else if (!on("key-form").hidden) closeKeyForm();
});
on("new-chat").addEventListener("click", newChat);
on("language").addEventListener("click", () => words.switchLanguage());
on("key-button").addEventListener("click", () => (on("key-form").hidden ? openKeyForm(null) : closeKeyForm()));
on("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  saveKey();
});
// The gateway would go on for a while for a reader who does not come back.
window.addEventListener("pagehide", (event) => event.persisted || running?.abort());

words.apply();
loadModels();
if (sessionStorage.getItem(KEY) === null) openKeyForm(null);
else on("question").focus();
