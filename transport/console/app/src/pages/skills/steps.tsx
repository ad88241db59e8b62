// What a skill does: its steps with their selectors, its parameters, and what must hold after it.

import type { ComponentChildren } from "preact";
import { narrow } from "../../controls/media";
import { Stranger } from "../../controls/text";
import { plural } from "../../lib/format";
import { visible } from "../../lib/hostile";
import { checkText, selectorsOf, shotsOf, stepValue, stepVerb, type Definition, type Locator, type Param, type SkillRun, type SkillStep } from "../../lib/skills";
import { Shot } from "./shot";

export function StepWords({ s }: { s: SkillStep }) {
  const v = stepValue(s);
  return (
    <span class="step-words">
      <strong>{stepVerb(s)}</strong>{" "}
      {s.target?.text && s.kind === "click" ? <Stranger text={"“" + s.target.text + "”"} line chars={80} /> : null}
      {v.kind === "text" && <Stranger text={v.text} line chars={120} />}
      {v.kind === "param" && <code class="param">{visible(v.text)}</code>}
      {v.kind === "secret" && (
        <span class="secret">
          the secret <code>{visible(v.text)}</code>
        </span>
      )}
    </span>
  );
}

/** Selectors lists how an element is found, in the order of the tries. */
export function Selectors({ of }: { of: Locator | null | undefined }) {
  const all = selectorsOf(of);
  if (all.length === 0 && !of?.text) return <span class="dim">–</span>;
  const [first, ...rest] = all;
  const more = [...rest.map((s) => ({ kind: "then", text: s })), ...(of?.text ? [{ kind: "then the text", text: of.text }] : [])];
  return (
    <div class="selectors">
      {first ? (
        <code>
          <Stranger text={first} line chars={200} />
        </code>
      ) : null}
      {more.length > 0 && (
        <details>
          <summary>{plural(more.length, "other way", "other ways")}</summary>
          <ol>
            {more.map((m, i) => (
              <li key={i}>
                <span class="dim">{m.kind}</span>{" "}
                <code>
                  <Stranger text={m.text} line chars={200} />
                </code>
              </li>
            ))}
          </ol>
        </details>
      )}
    </div>
  );
}

function StepTable({ name, steps, commit, shots }: { name: string; steps: readonly SkillStep[]; commit?: string | undefined; shots: ReturnType<typeof shotsOf> }) {
  if (narrow.value)
    return (
      <ol class="recorded-steps" aria-label={name}>
        {steps.map((s, i) => (
          <li key={s.id} data-id={s.id} class={s.id === commit ? "commit" : ""}>
            <div class="recorded-head">
              <span class="dim num">{i + 1}</span>
              <StepWords s={s} />
              {s.phase === "auth" && <span class="tag">sign-in</span>}
              {s.id === commit && <span class="tag strong">commit point</span>}
            </div>
            {s.target && <Selectors of={s.target} />}
            {shots.has(s.id) && <Shot of={shots.get(s.id)!.key} label={`step ${i + 1}`} />}
          </li>
        ))}
      </ol>
    );
  return (
    <div class="table-wrap" tabIndex={0} role="group" aria-label={name + ", scrolls sideways"}>
      <table class="table skill-steps" aria-label={name}>
        <thead>
          <tr>
            <th scope="col" class="num">
              No.
            </th>
            <th scope="col">Step</th>
            <th scope="col">Element</th>
            <th scope="col">Picture</th>
          </tr>
        </thead>
        <tbody>
          {steps.map((s, i) => (
            <tr key={s.id} data-id={s.id} class={s.id === commit ? "commit" : ""}>
              <td class="num">{i + 1}</td>
              <td>
                <StepWords s={s} /> {s.phase === "auth" && <span class="tag">sign-in</span>} {s.id === commit && <span class="tag strong">commit point</span>}
              </td>
              <td>
                <Selectors of={s.target} />
              </td>
              <td>{shots.has(s.id) ? <Shot of={shots.get(s.id)!.key} label={`step ${i + 1}`} /> : <span class="dim">–</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Params({ params }: { params: readonly Param[] }) {
  if (params.length === 0) return <p class="dim">It takes no parameters.</p>;
  return (
    <div class="table-wrap" tabIndex={0} role="group" aria-label="Parameters, scrolls sideways">
      <table class="table" aria-label="Parameters">
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col">Type</th>
            <th scope="col">Label</th>
            <th scope="col">Example</th>
          </tr>
        </thead>
        <tbody>
          {params.map((p) => (
            <tr key={p.name}>
              <th scope="row">
                <code>{visible(p.name)}</code>
              </th>
              <td>
                {p.type}
                {p.required ? ", required" : ""}
                {p.enum && (
                  <small class="kb-reason">
                    <Stranger text={p.enum.join(", ")} line chars={200} />
                  </small>
                )}
                {p.pattern && (
                  <small class="kb-reason">
                    <code>{visible(p.pattern)}</code>
                  </small>
                )}
              </td>
              <td>{p.label ? <Stranger text={p.label} line chars={100} /> : "–"}</td>
              <td>{p.example ? <Stranger text={String(p.example)} line chars={100} /> : "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const Part = ({ name, children }: { name: string; children: ComponentChildren }) => (
  <section class="skill-part" aria-label={name}>
    <h2>{name}</h2>
    {children}
  </section>
);

export function Steps({ d, runs, secrets }: { d: Definition; runs: readonly SkillRun[]; secrets: { kind: string; secret_refs: string[] } }) {
  const shots = shotsOf(runs);
  return (
    <>
      <p class="dim">
        Begins at <Stranger text={d.start_url} line chars={200} /> · may visit <Stranger text={d.target_hosts.join(", ")} line chars={300} />
        {d.commit_step_id ? "" : " · only reads"}
        {secrets.kind !== "none" && (
          <>
            {" "}
            · signs in with {secrets.kind === "cookies" ? "cookies" : "stored secrets"}: <code>{visible(secrets.secret_refs.join(", ")) || "none is stored"}</code>
          </>
        )}
      </p>
      <StepTable name="Steps" steps={d.steps} commit={d.commit_step_id} shots={shots} />
      <Part name="Parameters">
        <Params params={d.params} />
      </Part>
      {d.commit_step_id && (
        <Part name="Checks after the commit">
          {d.assertions.length === 0 ? (
            <p class="dim">Nothing is checked: it counts as done once the commit is answered.</p>
          ) : (
            <ol class="checks">
              {d.assertions.map((c, i) => (
                <li key={i}>
                  <Stranger text={checkText(c)} line />
                </li>
              ))}
            </ol>
          )}
        </Part>
      )}
      {d.result_fields.length > 0 && (
        <Part name="Results">
          <ul class="checks">
            {d.result_fields.map((f) => (
              <li key={f.name}>
                <code>{visible(f.name)}</code> <span class="dim">{f.type && f.type !== "string" ? f.type + ", " : ""}of</span>{" "}
                <code>
                  <Stranger text={f.selector} line chars={200} />
                </code>
              </li>
            ))}
          </ul>
        </Part>
      )}
      {d.compensation.length > 0 && (
        <Part name="If a check fails">
          <StepTable name="Compensation" steps={d.compensation} shots={shots} />
        </Part>
      )}
    </>
  );
}
