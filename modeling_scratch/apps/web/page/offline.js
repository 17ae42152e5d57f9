// The page's service worker: keeps the page's files in the browser, so that the page works without a network. All names
// but the page's own contain a hash of the content, so what is kept is never out of date.

const version = "";
const needed = [];
const others = []; // of all models but the first: each is kept when it is loaded

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

async function activate() {
  const old = (await caches.keys()).filter((name) => name.startsWith(MINE) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await clients.claim();
}

// The page itself comes from the network if there is one, since only that has the newest export.
async function pageFor(request) {
  const cache = await caches.open(CACHE);
  return fetch(request).catch(() => cache.match(scope));
}

async function fileFor(url) {
  const cache = await caches.open(CACHE);
  if (!(await cache.match(url))) await keep(cache, url).catch(() => {}); // the disk may be full
  return (await cache.match(url)) ?? fetch(url);
}

addEventListener("install", (event) => event.waitUntil(install()));
addEventListener("activate", (event) => event.waitUntil(activate()));
addEventListener("fetch", (event) => {
  const { origin, pathname } = new URL(event.request.url);
  const url = origin + pathname;
  if ([scope, `${scope}index.html`].includes(url)) event.respondWith(pageFor(event.request));
  else if (url.startsWith(scope) && [...needed, ...others].includes(url.slice(scope.length))) event.respondWith(fileFor(url));
});
