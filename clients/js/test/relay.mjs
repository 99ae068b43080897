// A TCP relay in front of a gateway: hands bytes on one at a time, and cuts connections.
import net from "node:net";

/**
 * @param target - the gateway's URL.
 * @param oneByOne - every byte is a write of its own.
 * @param cuts - after how many bytes an event stream is cut: one number for each, the first for the first.
 */
export async function relay(target, { oneByOne = false, cuts = [] } = {}) {
  const { hostname, port } = new URL(target);
  const left = [...cuts];
  const sockets = new Set();
  const seen = { streams: 0 };
  const server = net.createServer((client) => {
    const upstream = net.connect({ host: hostname, port: Number(port) });
    let before = null; // bytes that the stream on this connection may still send
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.setNoDelay(true);
      socket.on("error", () => {});
      socket.on("close", () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    client.pipe(upstream);
    upstream.on("data", (bytes) => {
      if (bytes.includes("content-type: text/event-stream")) {
        seen.streams++;
        before = left.length > 0 ? left.shift() : null;
      }
      if (before !== null) {
        const rest = bytes.subarray(0, before);
        before -= rest.length;
        if (before === 0) {
          client.write(rest, () => client.resetAndDestroy());
          return;
        }
      }
      if (!oneByOne) client.write(bytes);
      else for (const byte of bytes) client.write(Uint8Array.of(byte));
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    seen,
    async close() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
