// The hosts of a residency: names, or *. and a suffix, one a line.

const LABEL = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/i;

/** hostsOf reads a text of hosts, one a line or separated by blanks or commas. A repeated one counts once. */
export function hostsOf(text: string): { hosts: string[]; error?: string } {
  const hosts = [...new Set(text.split(/[\s,]+/).filter(Boolean).map((h) => h.toLowerCase()))];
  for (const h of hosts) {
    const name = h.replace(/^\*\./, "");
    if (/[:/]/.test(name)) return { hosts, error: `${h}: only the host, without a scheme, port or path` };
    if (name.length > 253 || !name.split(".").every((l) => LABEL.test(l))) return { hosts, error: `${h}: is no host name` };
  }
  return hosts.length > 200 ? { hosts, error: "200 hosts at most" } : { hosts };
}
