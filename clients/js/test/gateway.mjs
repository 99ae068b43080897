// Where the gateways are. tests/clients/test_js_client.py starts them and says so.
const told = JSON.parse(process.env.MULGIL_GROUNDS ?? "null");

export const grounds = told ?? {};

/** Options of a test that needs a gateway. */
export const needsGateway = told ? {} : { skip: "no gateway: pytest tests/clients/test_js_client.py starts them" };

/** A message that tells the simulated engine what to do. */
export function script(directives) {
  return [{ role: "user", content: `/simulate ${JSON.stringify(directives)}` }];
}

/** What to say to the gateway at this address. */
export function asking(url, directives, more = {}) {
  return { baseUrl: `${url}/v1`, key: grounds.key, model: grounds.model, messages: script(directives), ...more };
}

/** The error that reading the stream throws; fails if it throws none. */
export async function errorOf(stream) {
  let result;
  try {
    result = await stream.result();
  } catch (error) {
    return error;
  }
  throw new Error(`no error, but ${JSON.stringify(result)}`);
}

/** Requests that are not settled at this gateway. */
export async function running(url) {
  return (await (await fetch(`${url}/health`)).json()).running;
}

/** Wait, for this many milliseconds at most, until the gateway has as many requests. */
export async function until(url, count, within = 2_000) {
  const end = Date.now() + within;
  while ((await running(url)) !== count) {
    if (Date.now() > end) throw new Error(`${await running(url)} requests run, not ${count}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
