#!/bin/sh
# @angular/localize and @angular/compiler-cli 21.2.26. A message of code with a brace as text, $localize`Use {name} here`,
# is extracted to XLIFF 1.2 and 2 as it is, and Angular's own parsers of these files then report errors for its target
# ("Invalid ICU message. Missing '}'."), even if this is a copy of the source, and keep "Use " of it; the same message in
# Angular's JSON is read whole. One would guess that what the extractor writes its parser reads, in each format. It matters to
# whoever translates such files: the build fails at a message that nobody has changed.
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
npm init -y > /dev/null
npm install --silent --no-audit --no-fund @angular/localize@21.2.26 @angular/compiler@21.2.26 @angular/compiler-cli@21.2.26 \
  typescript@5.9.3 > /dev/null
cat > run.mjs <<'P'
import fs from "fs";
import { ConsoleLogger, LogLevel, NodeJSFileSystem, setFileSystem } from "@angular/compiler-cli";
import * as tools from "@angular/localize/tools";
const read = (name) => JSON.parse(fs.readFileSync(`node_modules/${name}/package.json`)).version;
console.log("@angular/localize", read("@angular/localize"), "typescript", read("typescript"));
const files = new NodeJSFileSystem();
setFileSystem(files);
fs.writeFileSync("app.js", "const text = $localize`:@@use:Use {name} here`;\n");
const [base, logger] = [files.resolve("."), new ConsoleLogger(LogLevel.error)];
const extractor = new tools.MessageExtractor(files, logger, { basePath: base, useSourceMaps: false });
const messages = extractor.extractMessages(files.resolve("app.js"));
const formats = {
  "a.xlf": [new tools.Xliff1TranslationSerializer("en", base, false, {}, files), new tools.Xliff1TranslationParser()],
  "b.xlf": [new tools.Xliff2TranslationSerializer("en", base, false, {}, files), new tools.Xliff2TranslationParser()],
  "c.json": [new tools.SimpleJsonTranslationSerializer("en"), new tools.SimpleJsonTranslationParser()],
};
const found = {};
for (const [name, [serializer, parser]] of Object.entries(formats)) {
  const text = serializer.serialize(messages).replace(/<source>(.*)<\/source>/, "$&<target>$1</target>");
  const { canParse, hint, diagnostics } = parser.analyze(name, text);
  const bundle = canParse ? parser.parse(name, text, hint) : { translations: {}, diagnostics };
  found[name] = [bundle.translations.use?.text, bundle.diagnostics.messages.length];
  console.log(name, found[name], bundle.diagnostics.messages.map((each) => each.message.split(" (")[0]));
}
const isAsDescribed = found["a.xlf"][1] > 0 && found["b.xlf"][1] > 0 && found["c.json"].join() === "Use {name} here,0";
process.exit(isAsDescribed ? 0 : 1);
P
node run.mjs || { echo changed; exit 1; }
echo as described
