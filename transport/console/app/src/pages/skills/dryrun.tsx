// Tries a skill: it fills the form up to the commit point and submits nothing.

import { useMemo, useRef, useState } from "preact/hooks";
import { call, get, randomKey } from "../../client/api";
import { Problem } from "../../client/problem";
import { Failed, useAction } from "../../controls/action";
import { Dialog } from "../../controls/dialog";
import { SchemaForm } from "../../controls/schemaform";
import { Loading } from "../../controls/states";
import { Stranger } from "../../controls/text";
import { announce } from "../../frame/announce";
import { statusText } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { isObject, type Json } from "../../lib/json";
import { allDrawn, complaints, draftOf, formOf, valueOf, type Draft } from "../../lib/schemaform";
import { examplesOf, paramsSchema, usedParams, type SkillRun } from "../../lib/skills";
import { Receipt } from "./receipt";
import type { Skill } from "./types";

export function DryRun({ skill: k, onClose, onRan }: { skill: Skill; onClose: () => void; onRan: () => void }) {
  const params = usedParams(k.definition);
  const form = useMemo(() => formOf(paramsSchema(params)), [k.updated_at]);
  const before = useMemo(() => examplesOf(params), [k.updated_at]);
  const [draft, setDraft] = useState<Draft | null>(null);
  const [used, setUsed] = useState<Draft | null>(null); // the draft of the last try
  const [shown, setShown] = useState(false); // what is missing, after the first try
  const [run, setRun] = useState<SkillRun | null>(null);
  const [failure, setFailure] = useState<Problem | null>(null);
  const last = useRef({ key: "", of: "" });
  const act = useAction();
  const read = form ? valueOf(form, draft ?? draftOf(form, before)) : { value: {} as Json, invalid: [] };
  const refused = act.problem && (act.problem.code === "INVALID_ARGS" || act.problem.code === "VALIDATION") ? complaints(act.problem.detail) : [];
  const go = (e: Event): void => {
    e.preventDefault();
    setShown(true);
    if (read.invalid.length > 0) return;
    // The same again after a lost answer is a repeat.
    const of = JSON.stringify(read.value);
    if (!last.current.key || last.current.of !== of) last.current = { key: randomKey(), of };
    const { key } = last.current;
    setUsed(draft);
    setFailure(null);
    void act.run(async () => {
      setRun(null);
      try {
        const r = await call<{ run: SkillRun }>("POST", `/v1/browser-skills/${k.id}/dry-run`, { body: { params: read.value }, key });
        last.current.key = "";
        setRun(r.run);
        announce("The dry run reached the commit point");
      } catch (e) {
        if (!(e instanceof Problem)) throw e;
        const tried = e.code === "BROWSER_SKILL_RUN_FAILED";
        if (tried || (!e.transient && e.status !== 401 && e.status < 500)) last.current.key = "";
        if (!tried) throw e;
        // It was tried and did not land: its row says more.
        const more = e.more["extensions"];
        const id = isObject(more as Json) ? (more as { run_id?: unknown }).run_id : undefined;
        setFailure(e);
        announce("The dry run failed");
        if (typeof id === "string") setRun(await get<{ run: SkillRun }>("/v1/browser-skills/runs/" + id).then((r) => r.run));
      } finally {
        onRan();
      }
    });
  };
  const ext = (failure?.more["extensions"] ?? {}) as Record<string, unknown>;
  return (
    <Dialog title="Dry run" onClose={onClose} closable={!act.busy} dirty={draft !== used} class="wide">
      <form onSubmit={go}>
        <p class="dim">A browser on the server fills the form with these values. It submits nothing and asks nobody.</p>
        {form ? <SchemaForm field={form} draft={draft ?? draftOf(form, before)} onChange={setDraft} invalid={[...(shown ? read.invalid : []), ...refused]} prefix="params" /> : <p>It takes no parameters.</p>}
        <Failed act={act} hide={refused.length > 0 && form !== null && allDrawn(form, draft ?? draftOf(form, before), refused, "params")} />
        <div class="actions">
          <button type="button" disabled={act.busy} onClick={onClose}>
            Close
          </button>
          <button type="submit" class="primary" disabled={act.busy}>
            {run || failure ? "Run again" : "Dry run"}
          </button>
        </div>
      </form>
      {act.busy && (
        <>
          <p role="status">The browser is at work. This may take two minutes.</p>
          <Loading rows={3} />
        </>
      )}
      {!act.busy && (run || failure) && (
        <section class="dry-result" aria-label="Result of the dry run">
          {failure && (
            <div role="alert" class="alert bad">
              <strong>It did not reach the commit point</strong>
              <p>
                <Stranger text={failure.detail} />
              </p>
              {typeof ext["step_id"] === "string" && (
                <p>
                  Step <code>{visible(ext["step_id"])}</code>
                  {Array.isArray(ext["selectors"]) && (
                    <>
                      , looked for{" "}
                      <code>
                        <Stranger text={ext["selectors"].map(String).join("  ")} line chars={400} />
                      </code>
                    </>
                  )}
                </p>
              )}
            </div>
          )}
          {run && !failure && <p class="alert info">{`It ${statusText(run.status)}: the form is filled, and nothing was submitted.`}</p>}
          {run && <Receipt run={run} />}
        </section>
      )}
    </Dialog>
  );
}
