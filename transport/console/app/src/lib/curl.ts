// A call to copy into a shell.

/** quote writes a text as one word of a POSIX shell. */
export const quote = (s: string): string => `'${s.replace(/'/g, `'\\''`)}'`;

export interface Call {
  method: string;
  url: string;
  body?: unknown;
  /** The body as it is sent, instead of `body`. */
  text?: string;
  /** The name of a field that has a file. */
  file?: string;
  /** Further headers. */
  headers?: Record<string, string>;
  /** What the call carries: an API key with its tenant, a publishable key, a session token of a widget, or nothing. */
  auth?: "key" | "embed_key" | "embed" | "none";
}

const AUTH: Record<NonNullable<Call["auth"]>, string[]> = {
  key: [`-H "Authorization: Bearer $SVC_API_KEY"`, `-H "X-Tenant-Id: $SVC_TENANT"`],
  embed_key: [`-H "X-Svc-Embed-Key: $SVC_EMBED_KEY"`, `-H "Origin: $SVC_ORIGIN"`],
  embed: [`-H "Authorization: Bearer $SVC_EMBED_TOKEN"`, `-H "Origin: $SVC_ORIGIN"`],
  none: [],
};

/**
 * curl returns a call as a command. The key and the tenant are placeholders that the shell
 * fills in from its environment: no secret is ever copied.
 */
export function curl(o: Call): string {
  const lines = [`curl -sS${o.method === "GET" ? "" : ` -X ${o.method}`} ${quote(o.url)}`, ...AUTH[o.auth ?? "key"]];
  for (const [name, value] of Object.entries(o.headers ?? {})) lines.push(`-H ${quote(`${name}: ${value}`)}`);
  const text = o.text ?? (o.body === undefined ? undefined : JSON.stringify(o.body));
  if (text !== undefined) lines.push(`-H 'Content-Type: application/json'`, `-d ${quote(text)}`);
  if (o.file) lines.push(`-F ${quote(o.file + "=@FILE")}`);
  return lines.join(" \\\n  ");
}
