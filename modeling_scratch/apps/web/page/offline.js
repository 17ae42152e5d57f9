// The page's service worker: keeps the page's files in the browser, so that the page works without a network. All names
// but the page's own contain a hash of the content, so what is kept is never out of date.

const version = "";
const needed = [];
const others = []; // of all models but the first: each is kept when it is loaded

const HASHED = /-[0-9a-f]{10}\.[^/]*$/; // also the names of another export
const { scope } = registration;
const MINE = `page ${scope} `; // other pages of the same origin have caches too
const CACHE = MINE + version;

async function install() {
  const cache = await caches.open(CACHE);
  await cache.add(new Request(scope, { cache: "no-cache" }));
  await Promise.all(needed.map((name) => keep(cache, new URL(name, scope).href)));
  await skipWaiting();
}

// The export before may have the same file.
async function keep(cache, url) {
  const found = await caches.match(url);
  return found ? cache.put(url, found) : cache.add(url);
}

const ignore = () => {}; // the disk may be full

// Takes over what was kept for the export before, and for a page of this export while that one's worker still ran.
async function activate() {
  const cache = await caches.open(CACHE);
  for (const name of (await caches.keys()).filter((name) => name.startsWith(MINE) && name !== CACHE)) {
    const kept = (await (await caches.open(name)).keys()).map(({ url }) => url);
    const wanted = kept.filter((url) => others.includes(url.slice(scope.length)));
    await Promise.all(wanted.map((url) => keep(cache, url).catch(ignore)));
    await caches.delete(name);
  }
  await clients.claim();
}

// The page itself comes from the network if there is one, since only that has the newest export.
async function pageFor(request) {
  const cache = await caches.open(CACHE);
  const answer = await fetch(request).catch(() => null);
  return answer && answer.status < 400 ? answer : ((await cache.match(scope)) ?? answer ?? Response.error());
}

async function fileFor(event, url) {
  const cache = await caches.open(CACHE);
  const found = await cache.match(url);
  if (found) return found;
  const answer = await fetch(url);
  if (answer.ok) event.waitUntil(cache.put(url, answer.clone()).catch(ignore));
  return answer;
}

// Keeps files that the page loaded, perhaps before this worker saw its requests.
async function keepLoaded(names) {
  const cache = await caches.open(CACHE);
  const missing = async (url) => (await cache.match(url)) || keep(cache, url).catch(ignore);
  await Promise.all(names.map((name) => missing(new URL(name, scope).href)));
}

addEventListener("install", (event) => event.waitUntil(install()));
addEventListener("activate", (event) => event.waitUntil(activate()));
addEventListener("message", (event) => event.waitUntil(keepLoaded(event.data)));
addEventListener("fetch", (event) => {
  const { origin, pathname } = new URL(event.request.url);
  const url = origin + pathname;
  if ([scope, `${scope}index.html`].includes(url)) event.respondWith(pageFor(event.request));
  else if (url.startsWith(scope) && HASHED.test(url)) event.respondWith(fileFor(event, url));
});
