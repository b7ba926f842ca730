// Checks README.md: its table of calls, and how to add the client to a project.
import assert from 'node:assert/strict';
import {execFileSync} from 'node:child_process';
import {mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {test} from 'node:test';
import {fileURLToPath} from 'node:url';
import {Worker} from 'node:worker_threads';
import {described} from '../calls.mjs';

const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');

test('the table has the calls as they are', () => {
  assert.equal(readme, described(), 'run `node calls.mjs`');
});

test('a project installs the client and counts', async t => {
  const [, shell, program, printed] = /```sh\n(.*?)```.*?`like.mjs`.*?```js\n(.*?)```\n```out\n(.*?)```/s.exec(readme);
  const project = mkdtempSync(join(tmpdir(), 'countd-'));
  t.after(() => rmSync(project, {recursive: true}));
  // The server needs a thread of its own, because the commands block this one.
  const server = new Worker(`
    const {parentPort} = require('node:worker_threads');
    const server = require('node:http').createServer((request, response) => request.resume().on('end', () => response.end('{"results":[{"id":"1","counts":{"like":1}}],"duplicate":false,"token":"t"}')));
    server.listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port));
  `, {eval: true});
  t.after(() => server.terminate());
  const port = await new Promise(resolve => server.once('message', resolve));
  symlinkSync(fileURLToPath(new URL('../../..', import.meta.url)), join(project, 'countd'));
  writeFileSync(join(project, 'package.json'), '{}');
  writeFileSync(join(project, 'like.mjs'), program.replace('127.0.0.1:7400', `127.0.0.1:${port}`));
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name))); // without the variables of this npm test
  const out = execFileSync('sh', ['-ec', shell], {cwd: project, encoding: 'utf8', env: {...env, npm_config_audit: 'false', npm_config_fund: 'false'}});
  assert(out.endsWith(`\n${printed}`), out);
});
