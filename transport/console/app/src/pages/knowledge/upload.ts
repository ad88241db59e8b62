// Sends files with their progress, which fetch does not tell.

import { unauthorized } from "../../client/api";
import { noAnswer, problemOf } from "../../client/problem";
import type { Doc } from "./one";

/** upload sends files as one request. The same key makes a repeat the same upload. */
export function upload(base: string, files: readonly File[], key: string, progress: (share: number) => void): Promise<Doc[]> {
  const form = new FormData();
  for (const f of files) form.append("file", f, f.name);
  return new Promise((done, failed) => {
    const x = new XMLHttpRequest();
    x.open("POST", `/v1/knowledge-bases/${base}/documents`);
    x.setRequestHeader("Accept", "application/json");
    x.setRequestHeader("X-Svc-CSRF", "1");
    x.setRequestHeader("Idempotency-Key", key);
    x.upload.onprogress = (e) => e.lengthComputable && progress(e.loaded / e.total);
    x.onerror = x.onabort = x.ontimeout = () => failed(noAnswer());
    x.onload = () => {
      const headers = new Headers();
      for (const name of ["X-Request-Id", "Retry-After"]) {
        const v = x.getResponseHeader(name);
        if (v) headers.set(name, v);
      }
      if (x.status >= 200 && x.status < 300) {
        try {
          done((JSON.parse(x.responseText) as { items: Doc[] }).items);
        } catch {
          failed(noAnswer());
        }
        return;
      }
      if (x.status === 401) for (const f of unauthorized) f();
      void problemOf(new Response(x.responseText, { status: x.status, headers })).then(failed);
    };
    x.send(form);
  });
}
