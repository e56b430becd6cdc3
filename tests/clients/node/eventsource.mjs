// The EventSource of the web, as Node has it from npm, against a running bridge: cut off
// in the middle of the output it resumes, the command runs once, and 204 ends it.
// It waits 3 s before each reconnect, so all streams are read at the same time.

import net from 'node:net';
import { EventSource } from 'eventsource';

const { SANDGATE_URL: bridge, SANDGATE_TOKEN: token } = process.env;
const LINES = 100;
const CUT_AFTER_BYTES = 2503;
const DEADLINE_MS = 40_000;
let failed = false;

function ensure(condition, message) {
  if (!condition) throw new Error(message);
}

async function check(name, body) {
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error('took longer than a check may')), DEADLINE_MS);
  });
  try {
    await Promise.race([body(), late]);
    console.log(`ok node: ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAIL node: ${name}: ${String(error.message).replaceAll('\n', ' ')}`);
  }
  clearTimeout(timer);
}

async function call(method, path, body) {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
  const response = await fetch(`${bridge}/v1/sandboxes${path}`, { method, headers, body: body && JSON.stringify(body) });
  ensure(response.ok, `${method} ${path} answered ${response.status}`);
  return response.status === 204 ? null : response.json();
}

// A proxy on loopback that closes its first connection after so many bytes of the answer.
function cuttingProxy() {
  const { hostname, port } = new URL(bridge);
  const proxy = { connections: 0, cut: false };
  proxy.server = net.createServer((client) => {
    const first = proxy.connections++ === 0;
    const upstream = net.connect(port, hostname);
    let left = first ? CUT_AFTER_BYTES : Infinity;
    const end = () => { client.destroy(); upstream.destroy(); };
    for (const socket of [client, upstream]) socket.on('error', end).on('close', end);
    client.on('data', (bytes) => upstream.write(bytes));
    upstream.on('data', (bytes) => {
      const passed = bytes.subarray(0, left);
      left -= passed.length;
      client.write(passed, () => {
        if (left > 0) return;
        proxy.cut = true;
        end();
      });
    });
  });
  return new Promise((ready) => {
    proxy.server.listen(0, '127.0.0.1', () => {
      proxy.url = `http://127.0.0.1:${proxy.server.address().port}`;
      ready(proxy);
    });
  });
}

// Reads until the client itself stops asking. `init` is what each request adds.
function read(url, init) {
  const reading = { stdout: '', exits: [], resumedInTheMiddle: false, stoppedBy: undefined };
  const source = new EventSource(url, {
    fetch: (input, options) =>
      fetch(input, { ...options, ...init, headers: { ...options.headers, ...init.headers, authorization: `Bearer ${token}` } }),
  });
  source.addEventListener('open', () => {
    if (reading.stdout && !reading.exits.length) reading.resumedInTheMiddle = true;
  });
  source.addEventListener('stdout', (event) => { reading.stdout += JSON.parse(event.data).chunk; });
  source.addEventListener('exit', (event) => { reading.exits.push(JSON.parse(event.data)); });
  return new Promise((done) => {
    source.addEventListener('error', (event) => {
      if (source.readyState !== EventSource.CLOSED) return;
      reading.stoppedBy = event.code;
      done(reading);
    });
  });
}

function counted(file) {
  return `echo run >> ${file}; i=0; while [ $i -lt ${LINES} ]; do ` +
    "printf 'line %03d %090d\\n' $i 0; i=$((i+1)); sleep 0.01; done";
}

async function cutAndResumed(sandbox, file, open) {
  const proxy = await cuttingProxy();
  try {
    const reading = await open(proxy.url);
    const printed = Array.from({ length: LINES }, (_, i) => `line ${String(i).padStart(3, '0')} ${'0'.repeat(90)}\n`).join('');
    ensure(proxy.cut && reading.resumedInTheMiddle, 'the cut did not fall into the output');
    ensure(reading.stdout === printed, `${reading.stdout.length} characters of ${printed.length}, or others`);
    ensure(reading.exits.length === 1, `${reading.exits.length} terminal events`);
    ensure(reading.exits[0].exit_code === 0, `exit code ${reading.exits[0].exit_code}`);
    ensure(reading.exits[0].result.outcome === 'exited', `outcome ${reading.exits[0].result.outcome}`);
    ensure(reading.stoppedBy === 204, `stopped by ${reading.stoppedBy}`);
  } finally {
    proxy.server.close();
  }
  const runs = (await call('POST', `/${sandbox}/exec`, { cmd: `wc -l < ${file}` })).stdout.trim();
  ensure(runs === '1', `the command ran ${runs} times`);
}

const sandbox = (await call('POST', '', { template: 'base' })).id;
// Files of the sandbox's own, also where /tmp is the host's.
const [posted, detached] = ['posted', 'detached'].map((name) => `/tmp/${sandbox}-${name}`);

await Promise.all([
  check('a started stream is cut, resumes, runs once and stops at 204', () =>
    cutAndResumed(sandbox, posted, (base) =>
      read(`${base}/v1/sandboxes/${sandbox}/exec/stream`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ cmd: counted(posted), on_disconnect: 'detach' }),
      }))),
  check("a detached exec's stream is cut, resumes and stops at 204", async () => {
    const exec = await call('POST', `/${sandbox}/execs`, { cmd: counted(detached) });
    await cutAndResumed(sandbox, detached, (base) =>
      read(`${base}/v1/sandboxes/${sandbox}/execs/${exec.exec_id}/stream`, {}));
  }),
]);

await call('DELETE', `/${sandbox}`);
process.exit(failed ? 1 : 0);
