// Builds dist/: the types of the API's JSON from docs/openapi.yaml, then both kinds of modules. `npm install` and
// `npm pack` of this directory run this script, so it first installs its dependencies.
import {execFileSync} from 'node:child_process';
import {existsSync, writeFileSync} from 'node:fs';
import {fileURLToPath} from 'node:url';

const cwd = fileURLToPath(new URL('.', import.meta.url));
const tsc = 'node_modules/typescript/bin/tsc';
if (!existsSync(cwd + tsc)) {
  execFileSync('npm', ['ci', '--prefix', cwd, '--ignore-scripts', '--no-audit', '--no-fund', '--silent'], {cwd, stdio: 'inherit', shell: process.platform === 'win32'});
}
const {default: openapiTS, astToString} = await import('openapi-typescript');
const {default: ts} = await import('typescript');
const int64 = ts.factory.createTypeReferenceNode('Int64');
const nodes = await openapiTS(new URL('../../docs/openapi.yaml', import.meta.url), {
  inject: '/** A whole number up to 64 bits; the client turns it into the type that its user chose. */\nexport type Int64 = {readonly int64: unique symbol};',
  transform: schema => (schema.type === 'integer' && schema.format === 'int64' ? int64 : undefined),
});
writeFileSync(`${cwd}src/api.ts`, astToString(nodes));
for (const config of ['tsconfig.json', 'tsconfig.cjs.json']) execFileSync(process.execPath, [tsc, '-p', config], {cwd, stdio: 'inherit'});
writeFileSync(`${cwd}dist/cjs/package.json`, '{"type":"commonjs"}');
