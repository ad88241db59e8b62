// The recorder: a person clicks and types on the picture of a page on the server, and what they
// do becomes steps.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Failed, useAction, useAsking, useHere } from "../../controls/action";
import { Confirm } from "../../controls/dialog";
import { useDirty } from "../../controls/dirty";
import { Check, Select, TextField } from "../../controls/form";
import { ErrorState, Loading } from "../../controls/states";
import { Stranger } from "../../controls/text";
import { announce } from "../../frame/announce";
import { NotFound } from "../../frame/frame";
import { Heading } from "../../frame/heading";
import { href, leave } from "../../frame/router";
import { visible } from "../../lib/hostile";
import { canBind, canCommit, checkText, codeText, keyOf, locatorOf, pointOn, shotURL, type SkillStep } from "../../lib/skills";
import { BindDialog, FinishDialog, PickDialog, SaveDialog } from "./finish";
import { Follow, type Deed, type Session } from "./session";
import { Params, Selectors, StepWords } from "./steps";

/** So long after the last key the text that was typed is sent. */
const TYPED = 500;

export function Recorder({ id, of }: { id: string; of: string }) {
  const f = useMemo(() => new Follow(id), [id]);
  useEffect(() => () => f.close(), [f]);
  const s = f.session.value;
  const error = f.error.value;
  if (error && (error.status === 404 || error.status === 400) && !s) return <NotFound />;
  if (!s)
    return (
      <>
        <Heading text="Browser skills" />
        {error ? <ErrorState problem={error} retry={() => location.reload()} /> : <Loading what="Opening the page" />}
      </>
    );
  return <Recording f={f} s={s} of={of} />;
}

type Asking = null | { what: "discard" | "finish" | "save" } | { what: "bind"; step: SkillStep } | { what: "pick"; deed: Deed };

function Recording({ f, s, of }: { f: Follow; s: Session; of: string }) {
  const gone = useAction();
  const here = useHere();
  const [asking, setAsking] = useAsking<Asking>(gone, null);
  const lost = f.error.value?.status === 404;
  const live = s.status === "live" && !lost;
  const dirty = s.steps.length > 0 && s.status !== "expired" && !lost;
  useDirty(dirty);
  const end = (to: string): void => {
    f.keep();
    leave(to);
  };
  const discard = (): void => {
    void gone.run(async (i) => {
      if (!lost) await i.send("DELETE", "/v1/browser-skills/recorder-sessions/" + s.id);
      end(of ? href("skills/" + of) : href("skills"));
    });
  };
  const tried = s.status === "ended" && s.dry_run;
  return (
    <>
      <Heading
        text="Browser skills"
        actions={
          <>
            <button type="button" onClick={() => (s.steps.length > 0 && !lost ? setAsking({ what: "discard" }) : discard())}>
              Discard
            </button>
            {(live || (s.status === "ended" && !lost)) && (
              <button type="button" class={tried && s.dry_run!.status === "succeeded" ? "" : "primary"} disabled={s.steps.length === 0 || f.waiting.value > 0} onClick={() => setAsking({ what: "finish" })}>
                {tried ? "Dry run again" : "Finish and dry run"}
              </button>
            )}
            {tried && s.dry_run!.status === "succeeded" && (
              <button type="button" class="primary" onClick={() => setAsking({ what: "save" })}>
                Save skill
              </button>
            )}
          </>
        }
      />
      <h2 class="item-name">Record a browser skill</h2>
      {!asking && <Failed act={gone} />}
      {lost && (
        <div role="alert" class="alert bad">
          <strong>The session is over</strong>
          <p>It expired, or the service was restarted. Record it again.</p>
        </div>
      )}
      {!lost && s.status === "expired" && (
        <div role="alert" class="alert bad">
          <strong>The session has expired</strong>
          <p>Nobody used it for 15 minutes, or it took an hour. Record it again.</p>
        </div>
      )}
      {s.status === "ended" && !s.dry_run && (
        <div role="alert" class="alert bad">
          <strong>The page was lost</strong>
          {s.note && (
            <p>
              <Stranger text={s.note} />
            </p>
          )}
        </div>
      )}
      {tried && <Tried s={s} />}
      <div class="recorder">
        {live && <Stage f={f} s={s} onPick={(deed) => setAsking({ what: "pick", deed })} />}
        <Recorded f={f} s={s} live={live} onBind={(step) => setAsking({ what: "bind", step })} />
      </div>
      {asking?.what === "discard" && (
        <Confirm title="Discard the recording?" action="Discard" busy={gone.busy} onClose={() => setAsking(null)} onConfirm={discard}>
          <p>Its steps are lost. What was done at the site stays done.</p>
          <Failed act={gone} />
        </Confirm>
      )}
      {asking?.what === "bind" && <BindDialog f={f} step={asking.step} onClose={() => setAsking(null)} />}
      {asking?.what === "pick" && <PickDialog f={f} deed={asking.deed} onClose={() => setAsking(null)} />}
      {asking?.what === "finish" && <FinishDialog f={f} s={s} onClose={() => setAsking(null)} />}
      {asking?.what === "save" && <SaveDialog s={s} of={of} onClose={() => setAsking(null)} onSaved={(skill) => here() && end(href("skills/" + skill))} />}
    </>
  );
}

function Tried({ s }: { s: Session }) {
  const d = s.dry_run!;
  const at = s.steps.findIndex((x) => x.id === d.step_id);
  const why = codeText(d.code);
  return (
    <section aria-label="Dry run" class="card tried" role="region">
      {d.status === "succeeded" && (
        <p class="alert info" role="status">
          <strong>The dry run succeeded.</strong> {s.commit_step_id ? "It reached the commit point, and submitted nothing." : "It did all steps."}
        </p>
      )}
      {d.status === "skipped" && (
        <p class="alert warn" role="status">
          <strong>Nothing was replayed:</strong> no commit point is marked, so a replay might change something. A skill is saved once its dry run succeeded: if it only reads, say so in another dry run.
        </p>
      )}
      {d.status === "failed" && (
        <div role="alert" class="alert bad">
          <strong>{at >= 0 ? `The dry run failed at step ${at + 1}` : "The dry run failed"}</strong>
          {d.message && (
            <p>
              <Stranger text={d.message} />
            </p>
          )}
          {why && <p>{why}</p>}
          <p>Try it with other values, or record it again.</p>
        </div>
      )}
      <dl class="facts-grid">
        {d.url && (
          <div class="wide">
            <dt>Page</dt>
            <dd>
              <Stranger text={d.title || ""} line /> <Stranger text={d.url} line />
            </dd>
          </div>
        )}
        {Object.entries(d.values ?? {}).map(([k, v]) => (
          <div key={k}>
            <dt>{visible(k)}</dt>
            <dd>
              <Stranger text={v} line />
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

const MODES = [
  { id: "click", name: "Click", hint: "Clicks at this place." },
  { id: "commit", name: "Mark commit point", hint: "Marks what submits the form. It is not clicked." },
  { id: "pick", name: "Pick a result", hint: "What the element says becomes an output of the skill." },
  { id: "expect", name: "Expect", hint: "After the commit the element must say what it says now." },
] as const;
type Mode = (typeof MODES)[number]["id"];

/** Typed is the text of one element: what was typed, what of it was sent, and what is on its way. */
interface Typed {
  text: string;
  sent: string;
  timer: number;
  sending: { text: string; done: Promise<boolean> } | null;
}
const noText = (): Typed => ({ text: "", sent: "", timer: 0, sending: null });

/** Stage is the live picture with its controls. */
function Stage({ f, s, onPick }: { f: Follow; s: Session; onPick: (deed: Deed) => void }) {
  const [mode, setMode] = useState<Mode>("click");
  const [point, setPoint] = useState<{ x: number; y: number } | null>(null);
  const [address, setAddress] = useState(s.url);
  const [typing, setTyping] = useState("");
  const typed = useRef(noText());
  const last = useRef<HTMLImageElement>(null);
  useEffect(() => setAddress(s.url), [s.url]);
  useEffect(() => () => clearTimeout(typed.current.timer), []);
  const src = shotURL(s.screenshot_key);
  // flush sends the text; with `end` the next key begins another. Unless it was lost, what follows may be sent.
  const flush = (end: boolean): Promise<boolean> => {
    const t = typed.current;
    const text = t.text;
    clearTimeout(t.timer);
    if (end) {
      typed.current = noText();
      setTyping("");
    }
    if (t.sending?.text === text) return t.sending.done;
    if (text === t.sent) return Promise.resolve(true);
    const sending: NonNullable<Typed["sending"]> = {
      text,
      done: f.act({ kind: "type", value: text }).then((done) => {
        if (t.sending === sending) t.sending = null;
        if (done) t.sent = text;
        const lost = !done && f.lost.peek() !== null;
        // A text that was lost is still there to be sent, before what comes next.
        if (lost && typed.current !== t && typed.current.text === "") {
          typed.current = t;
          setTyping(t.text);
        }
        return !lost;
      }),
    };
    t.sending = sending;
    return sending.done;
  };
  const act = (deed: Deed): Promise<boolean> => f.act(deed, flush(true));
  const again = (): void => {
    const s = f.lost.peek();
    if (!s) return;
    const t = typed.current;
    void f.send(s.way, s.body).then((done) => {
      const deed = s.body as Deed;
      if (done && deed.kind === "type" && deed["value"] === t.text) t.sent = t.text;
    });
  };
  const click = (e: MouseEvent): void => {
    const box = last.current?.getBoundingClientRect();
    const at = box && pointOn(box, { x: e.clientX, y: e.clientY }, s);
    if (!at) return;
    setPoint(at);
    if (mode === "pick") {
      void flush(true);
      onPick({ kind: "pick", ...at });
    } else void act({ kind: mode, ...at });
    if (mode === "commit") setMode("click");
  };
  const key = (e: KeyboardEvent): void => {
    const k = keyOf(e);
    if (!k) return;
    e.preventDefault();
    e.stopPropagation();
    const t = typed.current;
    if (k.type === "press" || (k.type === "back" && t.text === "")) {
      void act({ kind: "press", value: k.key });
      return;
    }
    t.text = k.type === "back" ? [...t.text].slice(0, -1).join("") : t.text + k.key;
    setTyping(t.text);
    clearTimeout(t.timer);
    t.timer = setTimeout(() => void flush(false), TYPED) as unknown as number;
  };
  const fault = f.fault.value;
  return (
    <section class="stage-part" aria-label="Page">
      <form
        class="address"
        onSubmit={(e) => {
          e.preventDefault();
          void act({ kind: "navigate", value: address.trim() });
        }}
      >
        <TextField label="Address" value={address} onInput={setAddress} />
        <button type="submit">Go</button>
        <button type="button" onClick={() => void act({ kind: "scroll", value: -Math.round(s.height * 0.7) })}>
          Scroll up
        </button>
        <button type="button" onClick={() => void act({ kind: "scroll", value: Math.round(s.height * 0.7) })}>
          Scroll down
        </button>
      </form>
      <div class="modes" role="group" aria-label="What a click does">
        {MODES.map((m) => (
          <button key={m.id} type="button" class="small" aria-pressed={m.id === mode} onClick={() => setMode(m.id)}>
            {m.name}
          </button>
        ))}
        <span class="dim">{MODES.find((m) => m.id === mode)!.hint}</span>
      </div>
      <div class={"stage mode-" + mode} role="application" aria-label="Live picture" aria-roledescription="page on the server" tabIndex={0} onClick={click} onKeyDown={key} onBlur={() => void flush(false)}>
        {src ? <img ref={last} src={src} alt="" width={s.width} height={s.height} draggable={false} /> : <Loading what="Waiting for a picture" />}
        {point && <span class="ring" aria-hidden="true" style={{ left: `${(point.x / s.width) * 100}%`, top: `${(point.y / s.height) * 100}%` }} />}
        {f.waiting.value > 0 && <span class="at-work">at work</span>}
      </div>
      <p class="dim stage-line">
        <span role="status" aria-label="Page title">
          <Stranger text={s.title || s.url} line chars={120} />
        </span>
        {typing && <span>{`typing ${[...typing].length} characters`}</span>}
      </p>
      {fault && (
        <div role="alert" class="alert bad">
          <strong>{f.lost.value ? "Not sent" : "Not done"}</strong>
          <p>
            <Stranger text={fault.detail || fault.title} />
          </p>
          <p class="dim">
            <code>{visible(fault.code)}</code> · the recording goes on
          </p>
          {f.lost.value && (
            <button type="button" class="small" disabled={f.waiting.value > 0} onClick={again}>
              Try again
            </button>
          )}
        </div>
      )}
      {s.note && (
        <p class="alert info">
          <Stranger text={s.note} line />
        </p>
      )}
      <ByWords act={act} onPick={onPick} point={point} />
    </section>
  );
}

const DEEDS = [
  { id: "type", name: "Type" },
  { id: "select", name: "Select an option" },
  { id: "click", name: "Click" },
  { id: "check", name: "Tick" },
  { id: "uncheck", name: "Untick" },
  { id: "press", name: "Press a key" },
  { id: "wait", name: "Wait" },
  { id: "commit", name: "Mark commit point" },
  { id: "pick", name: "Pick a result" },
  { id: "expect", name: "Expect" },
] as const;
const VALUE: Record<string, string> = { type: "Text", select: "Option", press: "Key", wait: "Milliseconds", expect: "Text" };

/** ByWords acts on an element that is named instead of clicked: for keyboards, long texts, lists and secrets. */
function ByWords({ act, onPick, point }: { act: (deed: Deed) => Promise<boolean>; onPick: (deed: Deed) => void; point: { x: number; y: number } | null }) {
  const [kind, setKind] = useState<string>("type");
  const [element, setElement] = useState("");
  const [value, setValue] = useState("");
  const [secret, setSecret] = useState(false);
  const [ref, setRef] = useState("");
  const [param, setParam] = useState("");
  const send = (e: Event): void => {
    e.preventDefault();
    // Where nothing is named, it is what was clicked last: lists take no click and no focus.
    const target = element.trim() ? { target: locatorOf(element) } : point && (kind === "select" || kind === "pick" || kind === "commit" || kind === "click" || (kind === "expect" && !value)) ? point : {};
    const ticks = kind === "check" || kind === "uncheck";
    const deed: Deed = {
      kind: ticks ? "check" : kind,
      ...target,
      ...(ticks ? { value: kind === "check" } : kind in VALUE && (value !== "" || kind === "type") ? { value } : {}),
      ...(kind === "type" && secret && ref.trim() ? { secret_ref: ref.trim() } : {}),
      ...((kind === "type" || kind === "select") && !secret && param.trim() ? { param: param.trim() } : {}),
    };
    if (kind === "pick") return onPick(deed);
    void act(deed).then((done) => {
      if (!done) return;
      setValue("");
      setParam("");
      announce("Done");
    });
  };
  return (
    <form class="by-words" aria-label="Act by words" onSubmit={send}>
      <Select
        label="Action"
        value={kind}
        onChange={(k) => {
          // A secret is never shown, nor sent as something else.
          if (kind === "type" && secret) setValue("");
          setKind(k);
        }}
        choices={DEEDS.map((d) => ({ value: d.id, label: d.name }))}
      />
      <TextField label="Element" value={element} onInput={setElement} hint="A CSS selector, or the text it shows. Empty: the last one" />
      {kind in VALUE && <TextField label={VALUE[kind]!} value={value} onInput={setValue} type={kind === "type" && secret ? "password" : "text"} autocomplete={secret ? "new-password" : "off"} />}
      {(kind === "type" || kind === "select") && !(kind === "type" && secret) && <TextField label="Parameter" value={param} onInput={setParam} hint="Its name, if callers give the value" />}
      {kind === "type" && secret && <TextField label="Secret name" value={ref} onInput={setRef} hint="Lower case. A password field needs none" />}
      {kind === "type" && (
        <Check
          label="It is a secret"
          checked={secret}
          onChange={(on) => {
            if (!on) setValue("");
            setSecret(on);
          }}
        />
      )}
      <button type="submit">Do it</button>
    </form>
  );
}

/** Recorded lists what was recorded. */
function Recorded({ f, s, live, onBind }: { f: Follow; s: Session; live: boolean; onBind: (step: SkillStep) => void }) {
  return (
    <section class="recorded" aria-label="Recording">
      <h2>Steps</h2>
      {s.steps.length === 0 ? (
        <p class="dim">Click on the picture, then type. Each action becomes a step.</p>
      ) : (
        <ol class="recorded-steps" aria-label="Steps">
          {s.steps.map((x, i) => (
            <li key={x.id} data-id={x.id} class={x.id === s.commit_step_id ? "commit" : x.id === s.dry_run?.step_id ? "failed" : ""}>
              <div class="recorded-head">
                <span class="dim num">{i + 1}</span>
                <StepWords s={x} />
                {x.phase === "auth" && <span class="tag">sign-in</span>}
                {x.id === s.commit_step_id && <span class="tag strong">commit point</span>}
              </div>
              <Selectors of={x.target} />
              {live && (
                <div class="actions">
                  {canBind(x) && (
                    <button type="button" class="small" aria-label={`Make step ${i + 1} a parameter`} onClick={() => onBind(x)}>
                      {x.param ? "Change parameter" : "Make a parameter"}
                    </button>
                  )}
                  {canCommit(x) && x.id !== s.commit_step_id && (
                    <button type="button" class="small" aria-label={`Make step ${i + 1} the commit point`} onClick={() => void f.act({ kind: "commit", step_id: x.id })}>
                      Make the commit point
                    </button>
                  )}
                </div>
              )}
            </li>
          ))}
        </ol>
      )}
      {live && s.steps.length > 0 && (
        <button type="button" class="small" disabled={f.waiting.value > 0} onClick={() => void f.act({ kind: "undo" })}>
          Undo last step
        </button>
      )}
      {s.params.length > 0 && (
        <>
          <h2>Parameters</h2>
          <Params params={s.params} />
        </>
      )}
      {s.result_fields.length > 0 && (
        <>
          <h2>Results</h2>
          <ul class="checks">
            {s.result_fields.map((r) => (
              <li key={r.name}>
                <code>{visible(r.name)}</code> <span class="dim">of</span>{" "}
                <code>
                  <Stranger text={r.selector} line chars={120} />
                </code>
              </li>
            ))}
          </ul>
        </>
      )}
      {s.assertions.length > 0 && (
        <>
          <h2>Expected after the commit</h2>
          <ul class="checks">
            {s.assertions.map((c, i) => (
              <li key={i}>
                <Stranger text={checkText(c)} line />
              </li>
            ))}
          </ul>
        </>
      )}
      {s.target_hosts.length > 0 && (
        <p class="dim">
          It may visit <Stranger text={s.target_hosts.join(", ")} line chars={300} />
        </p>
      )}
    </section>
  );
}
