// The conformance tool imports fs.globSync, which Node has from version 22 on, for
// a command that is not used here. On an older Node this stands in for it.
import fs from 'node:fs';
import { register } from 'node:module';

const shim = 'data:text/javascript,' + encodeURIComponent(
  "export * from 'node:fs'; export { default } from 'node:fs'; export function globSync() { throw new Error('not on this Node'); }");
const hook = 'data:text/javascript,' + encodeURIComponent(
  `export const resolve = (s, c, next) => s === 'fs' && c.parentURL?.includes('/conformance/dist/') ? { url: ${JSON.stringify(shim)}, shortCircuit: true } : next(s, c);`);

if (!fs.globSync) register(hook);
