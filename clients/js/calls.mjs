// Writes the table of calls in README.md from the types of src/index.ts. A test compares both.
import {readFileSync, writeFileSync} from 'node:fs';
import {fileURLToPath} from 'node:url';
import ts from 'typescript';

const readme = new URL('README.md', import.meta.url);
const src = fileURLToPath(new URL('src/', import.meta.url));

/** Returns README.md with a new table of the calls. */
export function described() {
  const program = ts.createProgram([`${src}index.ts`], {target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext, strict: true});
  const checker = program.getTypeChecker();
  const shapes = type => {
    const name = type.symbol?.name ?? '';
    if (name === 'Promise') return shapes(checker.getAwaitedType(type));
    if (name === 'AsyncGenerator') return `for await: ${shapes(checker.getTypeArguments(type)[0])}`;
    if (checker.isArrayType(type)) return `[${shapes(checker.getTypeArguments(type)[0])}]`;
    if (type.flags & ts.TypeFlags.Boolean) return 'boolean';
    if (type.isUnion()) return type.types.filter(each => !(each.flags & ts.TypeFlags.Undefined)).map(shapes).filter((each, i, all) => all.indexOf(each) === i).join(' or ');
    if (type.flags & ts.TypeFlags.Unknown) return 'any JSON';
    if (name === 'Writer' || !(type.flags & (ts.TypeFlags.Object | ts.TypeFlags.Intersection))) return name === 'Writer' ? name : checker.typeToString(type);
    const fields = checker.getPropertiesOfType(type).filter(field => checker.typeToString(checker.getTypeOfSymbol(field)) !== 'undefined').map(field => {
      const list = checker.getNonNullableType(checker.getTypeOfSymbol(field));
      return field.name + (field.flags & ts.SymbolFlags.Optional ? '?' : '') + (checker.isArrayType(list) && checker.getTypeArguments(list)[0].flags & (ts.TypeFlags.Object | ts.TypeFlags.Union) ? `: ${shapes(list)}` : '');
    });
    return `{${fields.join(', ')}}`;
  };
  const optionsOf = {ReadOptions: '...read', WriteOptions: '...write', CallOptions: '...call', PageOptions: 'limit, cursor'};
  const argument = p => {
    const optional = p.questionToken || p.initializer ? '?' : '';
    const name = p.name.getText();
    if (name === 'call') return '{method, path, query?, body?, headers?}';
    const of = checker.getNonNullableType(checker.getTypeAtLocation(p));
    if (name === 'ops' || name === 'what' || name === 'config' || of.aliasSymbol?.name === 'Whole') return (name === 'ops' ? 'ops: ' : '') + shapes(of) + optional;
    if (name !== 'o' && name !== 'options') return name + optional;
    const parts = ts.isIntersectionTypeNode(p.type) ? p.type.types : [p.type];
    const names = parts.map(part => optionsOf[part.getText()] ?? part.members.map(member => member.name.getText()).join(', '));
    return `{${names.reverse().join(', ')}}${optional}`;
  };
  const rows = [];
  const describe = (node, before) => {
    for (const method of node.members.filter(ts.isMethodDeclaration)) {
      if (ts.isPrivateIdentifier(method.name) || method.modifiers?.some(m => m.kind === ts.SyntaxKind.StaticKeyword)) continue;
      const about = ts.getJSDocCommentsAndTags(method).map(doc => doc.comment).join(' ').replace(/\s+/g, ' ');
      if (about === '') throw new Error(`${method.name.text} has no comment`);
      const answer = shapes(checker.getReturnTypeOfSignature(checker.getSignatureFromDeclaration(method)));
      rows.push(`| \`${before}${method.name.text}(${method.parameters.map(argument).join(', ')})\` | ${answer === 'void' ? '' : `\`${answer}\``} | ${about} |`);
    }
  };
  for (const [file, name, before] of [['index.ts', 'Countd', ''], ['writer.ts', 'Writer', 'writer.']]) {
    program.getSourceFile(src + file).forEachChild(node => ts.isClassDeclaration(node) && node.name.text === name && describe(node, before));
  }
  const text = readFileSync(readme, 'utf8');
  return text.replace(/\| call .*\n(\|.*\n)*/, `| call | answer | |\n|---|---|---|\n${rows.join('\n')}\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeFileSync(readme, described());
