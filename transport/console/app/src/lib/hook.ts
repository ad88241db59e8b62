// How a hook is called, to copy. The secret is a placeholder: the service does not show it again.

import { quote } from "./curl";

/** EXAMPLE_BODY is what the examples send. */
export const EXAMPLE_BODY = `{"text":"Order 1042 was returned."}`;

export const LANGUAGES = [
  { id: "shell", name: "Shell" },
  { id: "node", name: "Node.js" },
  { id: "python", name: "Python" },
] as const;
export type Language = (typeof LANGUAGES)[number]["id"];

/** signedCall returns a program that calls a hook: it signs the bytes that it sends. */
export function signedCall(language: Language, url: string): string {
  switch (language) {
    case "shell":
      return [
        `HOOK_SECRET='<the secret of this hook>'`,
        `BODY=${quote(EXAMPLE_BODY)}`,
        `SIGNATURE=$(printf %s "$BODY" | openssl dgst -sha256 -hmac "$HOOK_SECRET" -r | cut -d' ' -f1)`,
        `curl -sS ${quote(url)} \\`,
        `  -H "X-Svc-Signature-256: sha256=$SIGNATURE" \\`,
        `  -H "Idempotency-Key: return-1042" \\`,
        `  --data-binary "$BODY"`,
      ].join("\n");
    case "node":
      return [
        `import { createHmac } from "node:crypto";`,
        ``,
        `const body = JSON.stringify({ text: "Order 1042 was returned." }); // signed and sent: the same bytes`,
        `const answer = await fetch(${JSON.stringify(url)}, {`,
        `  method: "POST",`,
        `  headers: {`,
        `    "X-Svc-Signature-256": "sha256=" + createHmac("sha256", process.env.HOOK_SECRET).update(body).digest("hex"),`,
        `    "Idempotency-Key": "return-1042",`,
        `  },`,
        `  body,`,
        `});`,
        `console.log(answer.status, await answer.text());`,
      ].join("\n");
    case "python":
      return [
        `import hashlib, hmac, json, os, urllib.request`,
        ``,
        `body = json.dumps({"text": "Order 1042 was returned."}).encode()  # signed and sent: the same bytes`,
        `signature = hmac.new(os.environ["HOOK_SECRET"].encode(), body, hashlib.sha256).hexdigest()`,
        `request = urllib.request.Request(${JSON.stringify(url)}, body, {`,
        `    "X-Svc-Signature-256": "sha256=" + signature,`,
        `    "Idempotency-Key": "return-1042",`,
        `})`,
        `print(urllib.request.urlopen(request, timeout=30).read().decode())`,
      ].join("\n");
  }
}
