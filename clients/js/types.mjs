// Writes src/api.d.ts, the types of the API's JSON, from docs/openapi.yaml.
import {writeFileSync} from 'node:fs';
import openapiTS, {astToString} from 'openapi-typescript';
import ts from 'typescript';

const int64 = ts.factory.createTypeReferenceNode('Int64');
const nodes = await openapiTS(new URL('../../docs/openapi.yaml', import.meta.url), {
  inject: '/** A whole number up to 64 bits; the client turns it into the type that its user chose. */\nexport type Int64 = {readonly int64: unique symbol};',
  transform: schema => (schema.type === 'integer' && schema.format === 'int64' ? int64 : undefined),
});
writeFileSync(new URL('src/api.ts', import.meta.url), astToString(nodes));
