// The models of an export: their files, next to the page or compressed inside it, and the worker that runs them.

const embedded = document.getElementById("files") && JSON.parse(document.getElementById("files").textContent);
export const isOneFile = Boolean(embedded);

// Some servers send a compressed file as the compressed form of another, which the browser unpacks.
async function unpacked(content) {
  const start = new Uint8Array(await content.slice(0, 2).arrayBuffer());
  const isPacked = start[0] === 0x1f && start[1] === 0x8b;
  const stream = isPacked ? content.stream().pipeThrough(new DecompressionStream("gzip")) : content.stream();
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function fetched(path, progress) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  const parts = [];
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts);
    parts.push(value);
    progress(value.length);
  }
}

const decoded = (base64) => new Blob([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))]);

export async function read(path, progress = () => {}) {
  try {
    return await unpacked(embedded ? decoded(embedded[path]) : await fetched(path, progress));
  } catch (error) {
    throw new Error(`${path} cannot be loaded (${error.message}).`);
  }
}

// Keeps the page's files and those of a model, { name: path }, so that they work without a network from now on.
async function keepOffline(paths) {
  if (isOneFile) return;
  try {
    await navigator.serviceWorker.register("offline.js");
    const { active } = await navigator.serviceWorker.ready;
    active.postMessage(Object.values(paths));
  } catch {
    // Browsers have no service workers in insecure or sandboxed pages.
  }
}

// Reads files, { name: path }. Returns their contents by name.
async function readAll(paths, progress) {
  const entries = Object.entries(paths).map(async ([name, path]) => [name, await read(path, progress)]);
  return Object.fromEntries(await Promise.all(entries));
}

const buffersOf = (files) => Object.values(files).map(({ buffer }) => buffer);

// Models that run in a worker; each is loaded when it is first chosen. Messages are those of worker.js. `onprogress` is
// called with the share of a model's files that has arrived, and the model.
export class Models {
  constructor(shared) {
    Object.assign(this, { shared, worker: null, licenses: "", loaded: new Map() });
  }

  // Loads a model, unless it has been loaded. After a failure, it can be loaded again.
  load(model) {
    const { id } = model;
    if (!this.loaded.has(id)) {
      const loading = this.fetch(model).catch((error) => {
        this.loaded.delete(id);
        throw error;
      });
      this.loaded.set(id, loading);
    }
    return this.loaded.get(id);
  }

  async fetch(model) {
    let [done, total] = [0, model.bytes + (this.worker ? 0 : this.shared.bytes)];
    const progress = (bytes) => {
      done += bytes;
      if (this.loaded.has(model.id)) this.onprogress(done / total, model); // and no other file has failed
    };
    this.worker ??= this.startWorker(progress).catch((error) => {
      this.worker = null;
      throw error;
    });
    const [worker, files] = await Promise.all([this.worker, readAll(model.files, progress)]);
    const loaded = new Promise((resolve, reject) => {
      worker.addEventListener("error", ({ message }) => {
        this.worker = null;
        reject(new Error(message ?? "This browser cannot run the model."));
      });
      worker.addEventListener("message", ({ data: { loaded } }) => {
        if (loaded?.id === model.id) loaded.problem ? reject(new Error(loaded.problem)) : resolve();
      });
    });
    worker.postMessage({ load: { model, files } }, buffersOf(files));
    await loaded;
    keepOffline(model.files);
  }

  async startWorker(progress) {
    const files = await readAll(this.shared.files, progress);
    this.licenses = new TextDecoder().decode(files[this.shared.licenses]);
    const worker = new Worker(URL.createObjectURL(new Blob([files[this.shared.worker]], { type: "text/javascript" })));
    worker.addEventListener("message", (event) => event.data.loaded || this.onmessage(event));
    worker.postMessage({ start: { shared: this.shared, files } }, buffersOf(files));
    return worker;
  }

  async postMessage(message) {
    (await this.worker).postMessage(message);
  }
}
