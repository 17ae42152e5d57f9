#!/bin/sh
# @intlify/message-compiler 11.4.2, which compiles the messages of vue-i18n. A linked message takes the punctuation after
# it into its key: "Press @:save." links to the key "save.", "@:save, then" to "save,", and no error is reported; only a
# space, "|", "{", "}", "(", ")", "@" or the end ends the key. One would guess that a key ends where its name does, as a
# placeholder does; the reference shows links before a space or at the end. It matters to translators, people and machines:
# "Press @:save now" is right, and its translation into a language with the verb last, "... @:save.", shows the key. An
# empty literal after the key, "@:save{''}.", ends it; so does "@:{'save'}.".
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
npm init -y > /dev/null
npm install --silent --no-audit --no-fund @intlify/message-compiler@11.4.2 > /dev/null
cat > run.cjs <<'P'
const { baseCompile } = require("@intlify/message-compiler");
console.log("@intlify/message-compiler", require("@intlify/message-compiler/package.json").version);
const key = (message) => {
  const errors = [];
  const { ast } = baseCompile(message, { onError: (error) => errors.push(error.message) });
  return ast.body.items.filter((item) => item.key).map((item) => item.key.value).concat(errors).join(" ");
};
const messages = { "Press @:save now": "save", "Press @:save.": "save.", "Press @:save, then": "save,", "@:save{''}.": "save",
  "Press @:{'save'}.": "save" };
let differs = false;
for (const [message, expected] of Object.entries(messages)) {
  console.log(JSON.stringify(message), "links to", JSON.stringify(key(message)));
  differs ||= key(message) !== expected;
}
process.exit(differs ? 1 : 0);
P
node run.cjs || { echo changed; exit 1; }
echo as described
