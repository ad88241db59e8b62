// Where the links of a model's answer lead.

/** place is the host of an https link, or the address of an e-mail link without its text. */
export function place(href: string): string {
  const url = new URL(href);
  return url.protocol === "mailto:" ? url.pathname : url.host;
}
