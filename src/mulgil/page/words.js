// What the page says, in both languages.

const ENGLISH = {
  otherLanguage: "한국어",
  model: "Model",
  newChat: "New chat",
  key: "Key",
  keyLabel: "API key",
  keySave: "Use this key",
  keyHint: "It stays in this tab and is forgotten when you close it. Leave it empty if this server asks for none.",
  conversation: "Conversation",
  welcome: "Ask something. The answer appears as it is made.",
  question: "Your message",
  answer: "Answer",
  you: "You",
  send: "Send",
  stop: "Stop",
  keysHint: "Enter sends · Shift+Enter starts a line · Escape stops",
  thinking: "Reasoning",
  waiting: "Waiting for the first token…",
  reconnecting: (attempt) => `Connection lost, resuming… (try ${attempt})`,
  resumed: "Connected again.",
  stopped: "Stopped.",
  finished: "The answer is complete.",
  cutShort: "The answer was cut at its longest allowed length.",
  filtered: "The answer was ended by a content filter.",
  firstToken: (seconds) => `First token after ${seconds} s`,
  tokens: (prompt, answer) => `${prompt} prompt + ${answer} answer tokens`,
  speed: (perSecond) => `${perSecond} tokens/s`,
  tryAgain: "Try again",
  resume: "Resume",
  wait: (seconds) => `You can try again in ${seconds} s.`,
  requestId: (id) => `Request ${id}`,
  noKey: "This server wants an API key. Enter yours above.",
  badKey: "This API key is wrong, disabled or expired. Enter another one above.",
  forbidden: "This key may not use this model.",
  noModel: "This model is not served here. Choose another one above.",
  noStream: "The server no longer has the rest of this answer.",
  tooLong: "The conversation is too long for this model. Start a new chat, or shorten the message.",
  tooLarge: "The message is too large for this server.",
  invalid: (field) => (field ? `The server does not accept the request: ${field} is not valid.` : "The server does not accept the request."),
  busyBudget: "Your budget is used up for the moment.",
  noQuota: "What your key may use today or this month is used up.",
  neverFits: "This request is larger than your whole budget allows, so trying again will not help.",
  unavailable: "The server cannot answer right now: it is starting, overloaded or being repaired.",
  failed: "The server failed at this answer. What you see is not whole.",
  broken: "The connection broke, and the answer is not whole.",
  unreachable: "The server could not be reached.",
  noModels: "The models could not be listed.",
  unknown: "Something went wrong.",
};

const KOREAN = {
  otherLanguage: "English",
  model: "모델",
  newChat: "새 대화",
  key: "키",
  keyLabel: "API 키",
  keySave: "이 키 사용",
  keyHint: "키는 이 탭에만 보관되며 탭을 닫으면 지워집니다. 키가 필요 없는 서버라면 비워 두세요.",
  conversation: "대화",
  welcome: "무엇이든 물어보세요. 답변이 만들어지는 대로 나타납니다.",
  question: "메시지",
  answer: "답변",
  you: "나",
  send: "보내기",
  stop: "멈추기",
  keysHint: "Enter 보내기 · Shift+Enter 줄바꿈 · Esc 멈추기",
  thinking: "추론 과정",
  waiting: "첫 토큰을 기다리는 중…",
  reconnecting: (attempt) => `연결이 끊겨 이어받는 중… (${attempt}번째 시도)`,
  resumed: "다시 연결되었습니다.",
  stopped: "멈췄습니다.",
  finished: "답변이 끝났습니다.",
  cutShort: "허용된 최대 길이에서 답변이 잘렸습니다.",
  filtered: "콘텐츠 필터가 답변을 끝냈습니다.",
  firstToken: (seconds) => `첫 토큰까지 ${seconds}초`,
  tokens: (prompt, answer) => `입력 ${prompt} + 답변 ${answer} 토큰`,
  speed: (perSecond) => `초당 ${perSecond} 토큰`,
  tryAgain: "다시 시도",
  resume: "이어받기",
  wait: (seconds) => `${seconds}초 뒤에 다시 시도할 수 있습니다.`,
  requestId: (id) => `요청 ${id}`,
  noKey: "이 서버를 쓰려면 API 키가 필요합니다. 위에 입력하세요.",
  badKey: "API 키가 틀렸거나, 중지되었거나, 만료되었습니다. 위에 다른 키를 입력하세요.",
  forbidden: "이 키로는 이 모델을 쓸 수 없습니다.",
  noModel: "여기에 없는 모델입니다. 위에서 다른 모델을 고르세요.",
  noStream: "서버에 이 답변의 나머지가 더 이상 남아 있지 않습니다.",
  tooLong: "대화가 이 모델에 비해 너무 깁니다. 새 대화를 시작하거나 메시지를 줄이세요.",
  tooLarge: "메시지가 이 서버에 비해 너무 큽니다.",
  invalid: (field) => (field ? `서버가 요청을 받아들이지 않습니다: ${field} 값이 올바르지 않습니다.` : "서버가 요청을 받아들이지 않습니다."),
  busyBudget: "지금은 사용 한도를 모두 썼습니다.",
  noQuota: "이 키로 오늘 또는 이번 달에 쓸 수 있는 양을 모두 썼습니다.",
  neverFits: "요청이 전체 한도보다 커서 다시 시도해도 소용이 없습니다.",
  unavailable: "서버가 지금은 답할 수 없습니다. 시작 중이거나, 붐비거나, 복구 중입니다.",
  failed: "서버가 답변을 만들다 실패했습니다. 보이는 내용은 전부가 아닙니다.",
  broken: "연결이 끊겨 답변이 온전하지 않습니다.",
  unreachable: "서버에 연결할 수 없습니다.",
  noModels: "모델 목록을 가져오지 못했습니다.",
  unknown: "문제가 생겼습니다.",
};

const STORED = "mulgil-language";

/** Says things in the chosen language; what is on the page changes with it. */
export class Words {
  constructor() {
    const chosen = sessionStorage.getItem(STORED) ?? navigator.language;
    this.korean = chosen.toLowerCase().startsWith("ko");
  }

  /** The text for this name; some take values. */
  say(name, ...values) {
    const word = (this.korean ? KOREAN : ENGLISH)[name];
    return typeof word === "function" ? word(...values) : word;
  }

  /** Put the text into the element, now and whenever the language changes. */
  put(element, name, ...values) {
    element.dataset.words = name;
    element.wordValues = values;
    element.textContent = this.say(name, ...values);
  }

  /** Take the text out again. */
  clear(element) {
    delete element.dataset.words;
    element.textContent = "";
  }

  switchLanguage() {
    this.korean = !this.korean;
    sessionStorage.setItem(STORED, this.korean ? "ko" : "en");
    this.apply();
  }

  apply() {
    document.documentElement.lang = this.korean ? "ko" : "en";
    for (const element of document.querySelectorAll("[data-words]")) {
      element.textContent = this.say(element.dataset.words, ...(element.wordValues ?? []));
    }
    for (const element of document.querySelectorAll("[data-words-label]")) {
      element.setAttribute("aria-label", this.say(element.dataset.wordsLabel));
    }
    for (const element of document.querySelectorAll("[data-words-placeholder]")) {
      element.placeholder = this.say(element.dataset.wordsPlaceholder);
    }
    const other = document.getElementById("language");
    other.textContent = this.say("otherLanguage");
    other.lang = this.korean ? "en" : "ko";
  }
}
