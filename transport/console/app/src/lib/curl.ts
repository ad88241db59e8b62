// A call to copy into a shell.

/** quote writes a text as one word of a POSIX shell. */
export const quote = (s: string): string => `'${s.replace(/'/g, `'\\''`)}'`;

/**
 * curl returns a call as a command. The key and the tenant are placeholders that the shell
 * fills in from its environment: no secret is ever copied.
 */
export function curl(o: { method: string; url: string; body?: unknown }): string {
  const lines = [`curl -sS${o.method === "GET" ? "" : ` -X ${o.method}`} ${quote(o.url)}`, `-H "Authorization: Bearer $SVC_API_KEY"`, `-H "X-Tenant-Id: $SVC_TENANT"`];
  if (o.body !== undefined) lines.push(`-H 'Content-Type: application/json'`, `-d ${quote(JSON.stringify(o.body))}`);
  return lines.join(" \\\n  ");
}
