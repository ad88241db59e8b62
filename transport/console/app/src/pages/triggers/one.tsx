// One trigger: when it fires, how its hook is called, and the runs that it started.

import { useState } from "preact/hooks";
import { get } from "../../client/api";
import { unlessGone } from "../../client/problem";
import type { Page } from "../../client/types";
import { Failed, once, useAction, useAsking } from "../../controls/action";
import { now } from "../../controls/clock";
import { Confirm, Dialog, ShownOnce } from "../../controls/dialog";
import { FormActions, TextField } from "../../controls/form";
import { Listing } from "../../controls/list";
import { Empty, ErrorState, Loading } from "../../controls/states";
import { Tabs } from "../../controls/tabs";
import { Copy, Rounded, Status, Stranger, Time } from "../../controls/text";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { href, leave } from "../../frame/router";
import { shortId } from "../../lib/format";
import { LANGUAGES, signedCall, type Language } from "../../lib/hook";
import { brief, visible } from "../../lib/hostile";
import { inexact, inexactText, parseJson, type Json } from "../../lib/json";
import { askedText, type Run } from "../../lib/run";
import { useList, type LiveList } from "../../live/list";
import { useResource, type Resource } from "../../live/resource";
import { hasPage, RunLink, RunTime } from "../run/parts";
import { TriggerForm } from "./form";
import { Due, Target, times } from "./parts";
import type { TriggerView } from "./trigger";

type Asking = "" | "edit" | "input" | "pause" | "rotate" | "delete";

export function OneTrigger({ id }: { id: string }) {
  const path = "/v1/triggers/" + id;
  const r: Resource<TriggerView> = useResource<TriggerView>(
    id,
    (s) => get<TriggerView>(path, undefined, s),
    (h) => h.event === "resource.changed" && h.data["id"] === id,
  );
  const [secret, setSecret] = useState("");
  const [fired, setFired] = useState("");
  const act = useAction();
  const [asking, setAsking] = useAsking<Asking>(act, "");
  const t = r.data.value;
  const error = r.error.value;
  if (error && (error.status === 404 || error.status === 400)) return <NotFound />;
  if (!t)
    return (
      <>
        <Heading text="Triggers" />
        {error ? <ErrorState problem={error} retry={() => void r.reload()} /> : <Loading />}
      </>
    );
  const name = visible(t.name);
  const fire = (input?: Json): void => {
    void act.run(async (i) => {
      const made = await i.send<{ run_id: string }>("POST", path + "/fire", input === undefined ? {} : { input });
      setAsking("");
      setFired(made.run_id);
    });
  };
  const toggle = (enabled: boolean): void => {
    void act.run(async (i) => {
      const now = await i.send<TriggerView>("PATCH", path, { enabled });
      setAsking("");
      r.fact(() => now);
      announce(now.enabled ? "Resumed" : "Paused");
    });
  };
  const rotate = (): void => {
    void act.run(async (i) => {
      const made = await i.send<{ secret: string }>("POST", path + "/rotate-secret");
      setAsking("");
      setSecret(made.secret);
    });
  };
  const remove = (): void => {
    void act.run(async (i) => {
      await i.send("DELETE", path);
      setAsking("");
      leave(href("triggers"));
    });
  };
  return (
    <>
      <Heading
        text="Triggers"
        actions={
          <>
            <button type="button" class="primary" disabled={act.busy || !t.enabled} onClick={once(() => fire())}>
              Fire now
            </button>
            <button type="button" disabled={!t.enabled} onClick={() => setAsking("input")}>
              Fire with input
            </button>
            <button type="button" aria-disabled={act.busy} onClick={() => !act.busy && (t.enabled ? setAsking("pause") : toggle(true))}>
              {t.enabled ? "Pause" : "Resume"}
            </button>
            <button type="button" onClick={() => setAsking("edit")}>
              Edit
            </button>
            {t.kind === "hook" && (
              <button type="button" onClick={() => setAsking("rotate")}>
                Rotate secret
              </button>
            )}
            <button type="button" onClick={() => setAsking("delete")}>
              Delete
            </button>
          </>
        }
      />
      <p>
        <a href={href("triggers")}>All triggers</a> / <bdi>{name}</bdi> <Status of={t.enabled ? "enabled" : "paused"} /> <Copy text={t.id} label="Copy ID" />
        {!t.enabled && <span class="dim"> Resume it to fire it.</span>}
      </p>
      {error && <ErrorState problem={error} retry={() => void r.reload()} />}
      {asking === "" && <Failed act={act} />}
      {fired && (
        <p role="status" class="alert info">
          <RunLink id={fired} /> started.
        </p>
      )}
      <div class="trigger-panes">
        <Facts t={t} />
        {t.schedule ? <Times t={t} /> : <Hook t={t} />}
      </div>
      <div class="heading">
        <h2>Recent runs</h2>
        {hasPage("runs") && <a href={href("runs", { trigger: t.id })}>All runs</a>}
      </div>
      <Runs t={t} />
      {asking === "edit" && (
        <TriggerForm
          of={t}
          onClose={() => setAsking("")}
          onDone={(now) => {
            setAsking("");
            r.fact(() => now);
            announce("Saved");
          }}
        />
      )}
      {asking === "input" && <FireWith t={t} act={act} onFire={fire} onClose={() => setAsking("")} />}
      {asking === "pause" && (
        <Confirm title={`Pause ${name}?`} action="Pause" danger={false} busy={act.busy} onClose={() => setAsking("")} onConfirm={() => toggle(false)}>
          <p>{t.kind === "hook" ? "Calls of its hook are answered with 404 until it is resumed." : "Times that pass while it is paused are not made up for."} Its runs go on.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "rotate" && (
        <Confirm title={`Rotate the secret of ${name}?`} action="Rotate secret" busy={act.busy} secret onClose={() => setAsking("")} onConfirm={rotate}>
          <p>Calls that are signed with the old secret are refused from then on.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {asking === "delete" && (
        <Confirm title={`Delete ${name}?`} action="Delete" busy={act.busy} onClose={() => setAsking("")} onConfirm={remove}>
          <p>{t.kind === "hook" ? "Calls of its hook are answered with 404." : "It does not fire any more."} Its runs stay.</p>
          <Failed act={act} />
        </Confirm>
      )}
      {secret && (
        <ShownOnce value={secret} label="Secret" onClose={() => setSecret("")}>
          <p>The calls of this hook are signed with it: the system that calls needs it.</p>
        </ShownOnce>
      )}
    </>
  );
}

/** isOf says whether a run is of a trigger's target: hints do not say what started it. */
const isOf = (t: TriggerView, run: Record<string, unknown>): boolean => (t.target.agent_id ? run["agent_id"] === t.target.agent_id : run["workflow_id"] === t.target.workflow_id);

function Facts({ t }: { t: TriggerView }) {
  return (
    <section class="card" aria-label="Trigger">
      <table class="facts-table">
        <tbody>
          <tr>
            <th scope="row">Kind</th>
            <td>{t.kind}</td>
          </tr>
          <tr>
            <th scope="row">Starts</th>
            <td>
              <Target of={t.target} link />
            </td>
          </tr>
          <tr>
            <th scope="row">Last fired</th>
            <td>{t.last_fired_at ? <Time at={t.last_fired_at} /> : "never"}</td>
          </tr>
          <tr>
            <th scope="row">Changed</th>
            <td>
              <Time at={t.updated_at} />
            </td>
          </tr>
          <tr>
            <th scope="row">Input</th>
            <td>{t.input === null || t.input === undefined ? "nothing" : <><pre><Stranger text={JSON.stringify(t.input, null, 2)} chars={2000} /></pre>{inexact(t.input as Json) && <Rounded />}</>}</td>
          </tr>
        </tbody>
      </table>
    </section>
  );
}

function Times({ t }: { t: TriggerView }) {
  const zone = t.schedule!.timezone ?? "UTC";
  // The first time is the service's; the others follow from the schedule.
  const due = times(t.schedule!.cron, zone, t.next_fire_at ? Date.parse(t.next_fire_at) : null, now.value);
  return (
    <section class="card" aria-labelledby="schedule">
      <h2 id="schedule">Schedule</h2>
      <p>
        <code>{t.schedule!.cron}</code> in {zone}
      </p>
      {!t.enabled && <p class="dim">It is paused. Once resumed it would come due at:</p>}
      {"times" in due ? <Due at={due.times} timezone={zone} /> : t.next_fire_at ? <p>Next: <Time at={t.next_fire_at} /></p> : <p class="dim">{due.error}</p>}
    </section>
  );
}

function Hook({ t }: { t: TriggerView }) {
  const [language, setLanguage] = useState<Language>("shell");
  const url = t.hook_url ?? "";
  const code = signedCall(language, url);
  return (
    <section class="card" aria-labelledby="hook">
      <h2 id="hook">Hook</h2>
      <div class="with-copy">
        <TextField label="Hook URL" value={url} onInput={() => undefined} readOnly mono />
        <Copy text={url} label="Copy URL" />
      </div>
      <p class="dim">
        A call is signed with the secret in <code>X-Svc-Signature-256</code>; <code>X-Hub-Signature-256</code> of a code host is accepted too. A repeat with the same <code>Idempotency-Key</code> starts no second run.
      </p>
      <div class="sample-head">
        <h3>Signed example</h3>
        <Copy text={code} label="Copy example" />
      </div>
      <Tabs label="Language of the example" tabs={LANGUAGES} open={language} onOpen={setLanguage}>
        <pre class="sample" tabIndex={0} role="region" aria-label="Signed example">
          {code}
        </pre>
      </Tabs>
    </section>
  );
}

function FireWith({ t, act, onFire, onClose }: { t: TriggerView; act: ReturnType<typeof useAction>; onFire: (input: Json) => void; onClose: () => void }) {
  const [text, setText] = useState("");
  const [wrong, setWrong] = useState("");
  const send = (e: Event): void => {
    e.preventDefault();
    const p = parseJson(text);
    if ("error" in p) return setWrong('not JSON: a text stands in quotes, as in {"text": "Hello"}');
    const lost = inexactText(p.value);
    if (lost) return setWrong(lost);
    onFire(p.value);
  };
  return (
    <Dialog title="Fire with input" onClose={onClose} dirty={text !== ""}>
      <form onSubmit={send} noValidate>
        <TextField
          label="Input"
          rows={6}
          mono
          value={text}
          onInput={(v) => {
            setText(v);
            setWrong("");
          }}
          error={wrong || act.problem?.fields["input"]}
          placeholder={t.target.agent_id ? '{ "text": "Once more, please." }' : "{ }"}
          hint="JSON. Its fields go over those of the trigger's input."
        />
        <Failed act={act} hide={!!act.problem?.fields["input"]} />
        <FormActions onClose={onClose} action="Fire" disabled={act.busy} />
      </form>
    </Dialog>
  );
}

function Runs({ t }: { t: TriggerView }) {
  const list: LiveList<Run> = useList<Run>(t.id, {
    read: (cursor, s) => get<Page<Run>>("/v1/runs", { view: "summary", trigger_id: t.id, limit: 100, cursor }, s),
    one: (id, s) => get<{ run: Run }>(`/v1/runs/${id}`, { view: "summary" }, s).then((x) => x.run, unlessGone),
    // A run that is shown may be of a former target.
    concerns: (h) => h.event === "run.changed" && (isOf(t, h.data) || !!list.items.peek()?.some((r) => r.id === h.data["id"])) && String(h.data["id"]),
  });
  return (
    <Listing
      name="Recent runs"
      list={list}
      href={(r) => href("runs/" + r.id)}
      link={(r) => <code>{shortId(r.id)}</code>}
      columns={[
        { head: "Run", cell: () => null },
        {
          head: "Status",
          cell: (r) => (
            <>
              <Status of={r.status} />
              {r.error && r.status === "failed" && <small class="code">{r.error.code}</small>}
            </>
          ),
        },
        { head: "Asked", cell: (r) => <bdi class="one-line asked">{brief(askedText(r), 160)}</bdi>, wide: true },
        { head: "Started", cell: (r) => <Time at={r.started_at ?? r.created_at} inside /> },
        { head: "Duration", cell: (r) => <RunTime run={r} />, num: true },
      ]}
      empty={<Empty title="No runs yet" action={<a href={href("runs", { trigger: t.id })}>All its runs</a>}>{t.enabled ? "They appear here as soon as it fires." : "It is paused."}</Empty>}
    />
  );
}
