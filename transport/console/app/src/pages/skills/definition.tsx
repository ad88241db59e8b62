// The definition as text. A skill changes only by a recording, so what is written here makes another skill.

import { useMemo, useRef, useState } from "preact/hooks";
import { can } from "../../client/session";
import { Failed, useAction } from "../../controls/action";
import { Code, type CodeRef } from "../../controls/code";
import { Dialog } from "../../controls/dialog";
import { useDirty } from "../../controls/dirty";
import { Check, FormActions, TextField } from "../../controls/form";
import { Copy } from "../../controls/text";
import { href, leave } from "../../frame/router";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { equal, INEXACT, inexact, isObject, parseJson, pathText, type Json } from "../../lib/json";
import { faultsOf, lineOf, placeIn } from "../../lib/jsontext";
import { complaints, type Invalid } from "../../lib/schemaform";
import { problemFields } from "./policy";
import type { Skill } from "./types";

export function DefinitionTab({ k }: { k: Skill }) {
  const admin = can("admin");
  const first = useMemo(() => JSON.stringify(k.definition, null, 2), [k.definition]);
  const [draft, setDraft] = useState<string | null>(null);
  const [making, setMaking] = useState(false);
  // What the service said of a text, as long as it is that text.
  const [refused, setRefused] = useState<{ text: string; invalid: Invalid[] } | null>(null);
  const box = useRef<CodeRef>(null);
  const text = draft ?? first;
  const put = (t: string): void => setDraft(t === first ? null : t);
  useDirty(draft !== null);
  const read = useMemo(() => parseJson(text), [text]);
  const value: Json | undefined = "value" in read ? read.value : undefined;
  const problems = useMemo<Invalid[]>(() => {
    if ("error" in read) return [{ path: "", message: "Not JSON: " + read.error }];
    const number = inexact(read.value);
    if (number) return [{ path: pathText(["definition", ...number]), message: INEXACT }];
    return refused?.text === text ? refused.invalid : [];
  }, [read, refused]);
  const faults = useMemo(() => faultsOf(text, problems, "definition"), [text, problems]);
  const bad = value === undefined || inexact(value) !== null;
  return (
    <>
      <Code
        label="Definition"
        to={box}
        rows={26}
        value={text}
        onInput={put}
        readOnly={!admin}
        faults={faults}
        schema="SkillDefinition"
        {...(problems.length > 0 ? { error: plural(problems.length, "problem") } : {})}
        hint={admin ? "This skill changes by recording it again. What is written here can be saved as a new skill." : undefined}
      />
      {problems.length > 0 && (
        <ul class="problems" aria-label="Problems">
          {problems.slice(0, 50).map((p, i) => {
            const place = placeIn(text, p, "definition");
            return (
              <li key={i}>
                <button type="button" class="link" disabled={!place} onClick={() => place && box.current?.select(place)}>
                  {place ? `Line ${lineOf(text, place.from)}` : "Text"}
                </button>{" "}
                {p.path && <code>{visible(p.path)}</code>} <span class="error">{visible(p.message)}</span>
              </li>
            );
          })}
        </ul>
      )}
      <div class="actions">
        <Copy text={text} label="Copy definition" />
        {admin && value !== undefined && (
          <button type="button" onClick={() => put(JSON.stringify(value, null, 2))}>
            Format
          </button>
        )}
        {admin && draft !== null && (
          <button type="button" onClick={() => put(first)}>
            Undo changes
          </button>
        )}
        {admin && (
          <button type="button" class="primary" disabled={bad || equal(value, k.definition as unknown as Json)} onClick={() => setMaking(true)}>
            Save as a new skill
          </button>
        )}
      </div>
      {making && value !== undefined && (
        <SaveAsNew
          k={k}
          definition={value}
          onClose={() => setMaking(false)}
          onRefused={(invalid) => {
            setRefused({ text, invalid });
            setMaking(false);
          }}
        />
      )}
    </>
  );
}

interface SaveProps {
  k: Skill;
  definition: Json;
  onClose: () => void;
  onRefused: (invalid: Invalid[]) => void;
}

/** SaveAsNew makes a skill of a definition. It takes the policy of the one that it comes from, and no grants. */
function SaveAsNew({ k, definition, onClose, onRefused }: SaveProps) {
  const [name, setName] = useState("");
  const [attested, setAttested] = useState(false);
  const [secrets, setSecrets] = useState<Record<string, string>>({});
  const act = useAction();
  const fields = problemFields(act.problem);
  const auth = isObject(definition) ? definition["auth"] : undefined;
  const mode = isObject(auth) && typeof auth["kind"] === "string" ? auth["kind"] : "none";
  const refs = isObject(auth) && Array.isArray(auth["secret_refs"]) ? auth["secret_refs"].filter((r): r is string => typeof r === "string") : [];
  const shown = (path: string): boolean => path === "name" || path === "owner_attested" || refs.some((r) => path === "auth.secrets." + r);
  const send = (e: Event): void => {
    e.preventDefault();
    void act.run(async (i) => {
      const body = { name: name.trim(), description: k.description, definition, policy: k.policy, node_id: k.node_id, owner_attested: attested, ...(refs.length > 0 ? { auth: { mode, secrets: Object.fromEntries(refs.map((r) => [r, secrets[r] ?? ""])) } } : {}) };
      const made = await i.send<{ skill: Skill }>("POST", "/v1/browser-skills", body);
      leave(href("skills/" + made.skill.id));
    });
  };
  const wrong = act.problem && ["VALIDATION", "BROWSER_SKILL_INVALID"].includes(act.problem.code) ? complaints(act.problem.detail) : [];
  const inText = wrong.filter((c) => c.path === "definition" || c.path.startsWith("definition.") || c.path.startsWith("definition["));
  return (
    <Dialog title="New browser skill" onClose={onClose} dirty={name !== "" || attested || Object.values(secrets).some(Boolean)}>
      <form onSubmit={send}>
        <Failed act={act} hide={wrong.length > 0 && wrong.every((c) => shown(c.path))} />
        {inText.length > 0 && (
          <p>
            <button type="button" onClick={() => onRefused(inText)}>
              Show in the text
            </button>
          </p>
        )}
        <p>It gets the policy of {visible(k.name)}. No agent may call it before it is granted, under Access.</p>
        <TextField label="Name" value={name} onInput={setName} error={fields["name"]} required />
        {refs.length > 0 && (
          <fieldset class="group">
            <legend>Secrets</legend>
            <p class="dim">They are stored encrypted and never shown again.</p>
            {refs.map((r) => (
              <TextField key={r} label={r} type="password" autocomplete="new-password" value={secrets[r] ?? ""} onInput={(v) => setSecrets({ ...secrets, [r]: v })} error={fields["auth.secrets." + r]} required />
            ))}
          </fieldset>
        )}
        <Check label="I own this site, or may automate it" checked={attested} onChange={setAttested} error={fields["owner_attested"]} />
        <FormActions onClose={onClose} action="Create" disabled={act.busy || !attested} />
      </form>
    </Dialog>
  );
}
