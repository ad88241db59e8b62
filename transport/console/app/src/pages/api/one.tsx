// One operation: its parameters and body, Send, its answer, and the same as a call of curl.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { randomKey } from "../../client/api";
import type { Description } from "../../client/schema";
import { withoutReferences } from "../../client/schema";
import { can } from "../../client/session";
import type { Role } from "../../client/types";
import { Code } from "../../controls/code";
import { Confirm, ShownOnce } from "../../controls/dialog";
import { useDirty } from "../../controls/dirty";
import { Field, Select, TextField } from "../../controls/form";
import { SchemaForm } from "../../controls/schemaform";
import { Tabs } from "../../controls/tabs";
import { Copy, Stranger } from "../../controls/text";
import { Tree } from "../../controls/tree";
import { announce } from "../../frame/announce";
import { curl } from "../../lib/curl";
import { bytesText, durationText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { inexact, parseJson, pathText, type Json } from "../../lib/json";
import { faultsOf, indented } from "../../lib/jsontext";
import { fill, withoutSecrets, type Operation, type Param } from "../../lib/openapi";
import { draftOf, formOf, valueOf, type Draft, type Invalid } from "../../lib/schemaform";
import { request, type Answer } from "./send";

const ROLES: readonly string[] = ["member", "manager", "admin", "owner"];

/** Why an operation cannot be sent from here, or "". */
function barred(o: Operation): string {
  if (o.auth === "embed_key") return "A widget calls it with a publishable key, from an origin that the key allows. Copy it as curl.";
  if (o.auth === "embed") return "A widget calls it with a session token, from the origin that it was minted for. Copy it as curl.";
  if (o.path.startsWith("/hooks/")) return "The sender signs it with the trigger's secret. Copy it as curl and add the signature.";
  if (o.id === "login") return "You are signed in. Copy it as curl.";
  if (ROLES.includes(o.role) && !can(o.role as Role)) return `It needs the role ${o.role}. An API key may send it: copy it as curl.`;
  return "";
}

export function One({ o, d }: { o: Operation; d: Description }) {
  const [values, setValues] = useState<Record<string, string>>({});
  const schema = useMemo(() => (o.body === "json" ? withoutReferences(o.schema, d) : true), [o, d]);
  const form = useMemo(() => formOf(schema), [schema]);
  const [mode, setMode] = useState<"json" | "form">("json");
  const [text, setText] = useState(() => (o.example === undefined ? "" : JSON.stringify(o.example, null, 2)));
  const [draft, setDraft] = useState<Draft | null>(null);
  const [file, setFile] = useState<File | null>(null);
  const [tried, setTried] = useState(false);
  const [asking, setAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [failure, setFailure] = useState("");
  const [secrets, setSecrets] = useState<[string, string][]>([]);
  const [touched, setTouched] = useState(false); // a body was typed or chosen, and not sent
  const [refused, setRefused] = useState(""); // why the other view of the body does not open
  const opened = useRef<Draft | null>(null); // the draft with which the form was opened
  const stop = useRef<AbortController | null>(null);
  const key = useRef<{ key: string; of: string }>({ key: "", of: "" });
  useEffect(() => () => stop.current?.abort(), []);
  useDirty(touched || (busy && o.method !== "GET"));
  // Try again sends what was asked for: another call has to be asked for again.
  const another = (): void => {
    setFailure("");
    setRefused("");
  };
  const typed = (): void => {
    setTouched(true);
    another();
  };

  const body: { text: string; invalid: Invalid[] } = useMemo(() => {
    if (o.body !== "json") return { text: "", invalid: [] };
    if (mode === "form" && form) {
      const r = valueOf(form, draft ?? draftOf(form, undefined));
      return { text: JSON.stringify(r.value, null, 2), invalid: r.invalid };
    }
    if (text.trim() === "") return { text: "", invalid: o.optional ? [] : [{ path: "", message: "is required" }] };
    const p = parseJson(text);
    return { text, invalid: "error" in p ? [{ path: "", message: "is not JSON: " + p.error }] : [] };
  }, [o, mode, form, draft, text]);
  const filled = fill(o, values);
  const why = barred(o);
  const command = curl({
    method: o.method,
    url: location.origin + filled.path,
    auth: o.auth,
    headers: filled.headers,
    ...(o.body === "json" && body.text ? { text: oneLine(body.text) } : {}),
    ...(o.body === "file" ? { file: "file" } : {}),
  });
  const wrong = filled.missing.length > 0 || body.invalid.length > 0 || (o.body === "file" && !file);
  const other = (to: "json" | "form"): void => {
    another();
    // A form in which nothing was typed leaves the text as it is.
    if (to === "json" && mode === "form" && draft !== opened.current) {
      const wrong = body.invalid[0];
      if (wrong) {
        setTried(true);
        setRefused(`The form is not complete, so there is no JSON of it: ${wrong.path ? wrong.path + " " : ""}${wrong.message}.`);
        return;
      }
      setText(body.text);
    }
    if (to === "form" && mode === "json" && form) {
      const p = parseJson(text.trim() || "{}");
      if ("error" in p) return setRefused("The text is not JSON, so it does not fit into a form.");
      // A number that the browser would change is better left in its text.
      const lost = inexact(p.value);
      if (lost) return setRefused(`The number at ${pathText(lost)} is too long for the form.`);
      opened.current = draftOf(form, p.value);
      setDraft(opened.current);
    }
    setMode(to);
  };
  const send = async (): Promise<void> => {
    if (busy) return;
    setBusy(true);
    setFailure("");
    setAnswer(null);
    const life = new AbortController();
    stop.current = life;
    const headers = { ...filled.headers };
    let out: string | FormData | null = null;
    if (o.body === "json" && body.text) out = body.text;
    if (o.body === "file" && file) {
      out = new FormData();
      out.set("file", file);
    }
    // A repeat after a lost answer is the same change.
    const of = filled.path + "\n" + body.text + "\n" + (file?.name ?? "");
    if (o.params.some((p) => p.name === "Idempotency-Key") && !headers["Idempotency-Key"]) {
      if (!key.current.key || key.current.of !== of) key.current = { key: randomKey(), of };
      headers["Idempotency-Key"] = key.current.key;
    }
    try {
      await request(
        { method: o.method, path: filled.path, headers, body: out, session: o.auth === "key" },
        (a) => {
          if (a.json !== undefined) {
            const clean = withoutSecrets(o, a.json);
            if (clean.secrets.length > 0 && a.status < 300) {
              setSecrets(clean.secrets);
              a = { ...a, json: clean.shown, body: "" };
            }
          }
          setAnswer(a);
          if (a.status < 300) setTouched(false);
        },
        life.signal,
      );
      key.current = { key: "", of: "" };
      announce("Answered");
    } catch (e) {
      if (!life.signal.aborted) setFailure(e instanceof Error ? e.message : String(e));
    } finally {
      setBusy(false);
    }
  };
  const ask = (e: Event): void => {
    e.preventDefault();
    setTried(true);
    if (wrong || busy || why) return;
    if (o.method === "GET") void send();
    else setAsking(true);
  };
  return (
    <section class="api-one" aria-label={o.id}>
      <h2>{o.summary}</h2>
      <p class="api-path">
        <span class={"method method-" + o.method.toLowerCase()}>{o.method}</span>
        <span>{o.path}</span>
      </p>
      {o.description && <p>{o.description}</p>}
      <p class="byline">
        <span>
          operation <code>{o.id}</code>
        </span>
        <span>{o.role ? `least role ${o.role}` : o.auth === "none" ? "needs no key" : "for widgets"}</span>
        {o.answers.length > 0 && <span>answers {o.answers.join(", ")}</span>}
      </p>
      <form onSubmit={ask} noValidate>
        {o.params.length > 0 && (
          <fieldset class="bare">
            <legend class="sr">Parameters</legend>
            <div class="api-params">
              {o.params.map((p) => (
                <Parameter key={p.in + p.name} p={p} value={values[p.name] ?? ""} onChange={(v) => { setValues({ ...values, [p.name]: v }); another(); }} error={tried && filled.missing.includes(p.name) ? "is required" : undefined} />
              ))}
            </div>
          </fieldset>
        )}
        {o.body === "json" && (
          <Tabs label="Body" tabs={form ? ([{ id: "json", name: "JSON" }, { id: "form", name: "Form" }] as const) : ([{ id: "json", name: "JSON" }] as const)} open={form ? mode : "json"} onOpen={other}>
            {mode === "form" && form ? (
              <SchemaForm
                field={form}
                draft={draft ?? draftOf(form, undefined)}
                onChange={(now) => {
                  setDraft(now);
                  typed();
                }}
                invalid={tried ? body.invalid : []}
              />
            ) : (
              <Code
                label="JSON"
                rows={24}
                value={text}
                onInput={(now) => {
                  setText(now);
                  typed();
                }}
                schema={schema}
                faults={faultsOf(text, text.trim() === "" ? [] : body.invalid, "")}
                error={tried || text.trim() !== "" ? body.invalid.map((i) => i.message).join("; ") || undefined : undefined}
              />
            )}
            {refused && (
              <p role="alert" class="error">
                {visible(refused)}
              </p>
            )}
          </Tabs>
        )}
        {o.body === "file" && (
          <Field label="File" error={tried && !file ? "is required" : undefined}>
            {(p) => <input {...p} type="file" onChange={(e) => { setFile(e.currentTarget.files?.[0] ?? null); typed(); }} />}
          </Field>
        )}
        {why && <p class="alert info">{why}</p>}
        <div class="actions">
          {!why && (
            <button type="submit" class="primary" disabled={busy}>
              Send
            </button>
          )}
          {busy && (
            <button type="button" onClick={() => stop.current?.abort()}>
              Stop
            </button>
          )}
          <Copy text={command} label="Copy as curl" />
        </div>
      </form>
      {failure && (
        <div role="alert" class="alert bad">
          <strong>Not sent</strong>
          <p>The service does not answer: {visible(failure)}</p>
          <button type="button" class="small" onClick={() => void send()}>
            Try again
          </button>
        </div>
      )}
      {answer && <Shown a={answer} o={o} />}
      {asking && (
        <Confirm
          title={`Send ${o.method} ${filled.path}?`}
          action="Send"
          danger={o.method === "DELETE"}
          onClose={() => setAsking(false)}
          onConfirm={() => {
            setAsking(false);
            void send();
          }}
        >
          <p>{o.summary}. It changes this tenant.</p>
          {o.body === "json" && body.text && (
            <pre class="api-body">
              <Stranger text={body.text} chars={2000} />
            </pre>
          )}
        </Confirm>
      )}
      {secrets[0] && (
        <ShownOnce key={secrets.length} value={secrets[0][1]} label={secrets[0][0]} onClose={() => setSecrets(secrets.slice(1))}>
          <p>It is not shown in the answer below.</p>
        </ShownOnce>
      )}
    </section>
  );
}

/** oneLine writes a body on one line where that changes no number. */
function oneLine(text: string): string {
  const p = parseJson(text);
  return "error" in p || inexact(p.value) ? text : JSON.stringify(p.value);
}

function Parameter({ p, value, onChange, error }: { p: Param; value: string; onChange: (v: string) => void; error: string | undefined }) {
  const hint = [p.in === "path" ? "" : p.in === "header" ? "header" : "", p.description, p.many ? "one per line" : ""].filter(Boolean).join(" · ");
  if (p.choices.length > 0 && !p.many) return <Select label={p.name} value={value} onChange={onChange} error={error} hint={hint} choices={[{ value: "", label: "–" }, ...p.choices.map((c) => ({ value: c, label: c }))]} />;
  const all = p.many && p.choices.length > 0 ? `${hint}: ${p.choices.join(", ")}` : hint;
  return <TextField label={p.name} value={value} onInput={onChange} error={error} hint={all} required={p.required} mono {...(p.many ? { rows: 2 } : {})} {...(p.name === "Idempotency-Key" ? { placeholder: "made by itself" } : {})} />;
}

function Shown({ a, o }: { a: Answer; o: Operation }) {
  const good = a.status < 400;
  return (
    <section class="api-answer card" aria-label="Response" aria-busy={a.open}>
      <h2>Response</h2>
      <p class="byline">
        <span class={"status status-" + (good ? "ok" : "error")}>{`${a.status} ${a.text}`.trim()}</span>
        <span>{durationText(a.ms)}</span>
        <span>{bytesText(a.bytes)}</span>
        {a.type && <code>{a.type}</code>}
      </p>
      <details>
        <summary>{`Headers (${a.headers.length})`}</summary>
        <table class="facts-table" aria-label="Headers">
          <tbody>
            {a.headers.map(([name, value], i) => (
              <tr key={i}>
                <th scope="row">{name}</th>
                <td>
                  <Stranger text={value} line />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
      {a.file ? (
        <SaveFile file={a.file} name={o.id} />
      ) : a.json !== undefined ? (
        <>
          <p>
            <Copy text={() => (a.body && inexact(a.json!) ? indented(a.body) : JSON.stringify(a.json, null, 2))} label="Copy body" />
          </p>
          <Body json={a.json} />
        </>
      ) : a.body ? (
        <pre>
          <Stranger text={a.body} chars={65_536} />
        </pre>
      ) : (
        <p class="dim">{a.open ? "Nothing yet." : "No body."}</p>
      )}
      {a.cut && <p class="dim">More came than is kept here: use curl for all of it.</p>}
    </section>
  );
}

const Body = ({ json }: { json: Json }) => (json !== null && typeof json === "object" ? <Tree value={json} label="Body" /> : <pre>{JSON.stringify(json)}</pre>);

function SaveFile({ file, name }: { file: Blob; name: string }) {
  const url = useMemo(() => URL.createObjectURL(file), [file]);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  return (
    <p>
      <a href={url} download={name}>
        Save the file
      </a>
    </p>
  );
}
