// What became of one run of a skill, with its pictures.

import type { ComponentChildren } from "preact";
import { Status, Stranger, Time, Duration } from "../../controls/text";
import { Tree } from "../../controls/tree";
import { href } from "../../frame/router";
import { shortId, statusText } from "../../lib/format";
import { codeText, type SkillRun, type StepResult } from "../../lib/skills";
import { Precommit } from "./precommit";
import { Shot } from "./shot";

const Fact = ({ name, children }: { name: string; children: ComponentChildren }) => (
  <div>
    <dt>{name}</dt>
    <dd>{children}</dd>
  </div>
);

export function StepResults({ steps, label }: { steps: readonly StepResult[]; label: string }) {
  return (
    <ol class="step-results" aria-label={label}>
      {steps.map((s, i) => (
        <li key={s.id + i} data-id={s.id}>
          <Status of={s.status} />
          <span class="grow">
            <Stranger text={s.label} line chars={200} />
            {s.note && (
              <small class="kb-reason">
                <Stranger text={s.note} line chars={300} />
              </small>
            )}
          </span>
          <Shot of={s.screenshot_key} label={`step ${i + 1}`} />
        </li>
      ))}
    </ol>
  );
}

export function Receipt({ run: r }: { run: SkillRun }) {
  const ms = r.finished_at ? Date.parse(r.finished_at) - Date.parse(r.created_at) : null;
  const why = codeText(r.code);
  return (
    <div class="receipt">
      {(r.code || why) && (
        <div class={"alert " + (r.code === "unknown_outcome" ? "warn" : "bad")} role="alert">
          <strong>{statusText(r.code ?? "")}</strong>
          {why && <p>{why}</p>}
        </div>
      )}
      <dl class="facts-grid">
        <Fact name="Status">
          <Status of={r.status} />
        </Fact>
        <Fact name="Mode">{r.mode === "dry_run" ? "dry run: nothing was submitted" : "run"}</Fact>
        <Fact name="Began">
          <Time at={r.created_at} />
        </Fact>
        <Fact name="Took">
          <Duration ms={ms} />
        </Fact>
        {r.agent_run_id && (
          <Fact name="Made by">
            <a href={href("runs/" + r.agent_run_id)}>
              Run <code>{shortId(r.agent_run_id)}</code>
            </a>
          </Fact>
        )}
        {r.approval_id && (
          <Fact name="Decided in">
            <a href={href("approvals/" + r.approval_id)}>
              Approval <code>{shortId(r.approval_id)}</code>
            </a>
          </Fact>
        )}
        {r.duplicate && <Fact name="Call">repeated: this is the run of the first call</Fact>}
      </dl>
      {r.precommit && <Precommit page={r.precommit} />}
      {r.steps.length > 0 && (
        <section aria-label="What was done">
          <h3>What was done</h3>
          <StepResults steps={r.steps} label="Steps done" />
        </section>
      )}
      {r.verification.length > 0 && (
        <section aria-label="Checks">
          <h3>Checks</h3>
          <ul class="checks">
            {r.verification.map((v, i) => (
              <li key={i}>
                <Status of={v.ok ? "ok" : "failed"} /> {statusText(v.kind)}: <Stranger text={v.expected} line chars={200} />
                {!v.ok && (
                  <>
                    {" "}
                    · found <Stranger text={v.actual || "nothing"} line chars={200} />
                  </>
                )}
              </li>
            ))}
          </ul>
        </section>
      )}
      {r.result !== null && (
        <section aria-label="Result">
          <h3>Result</h3>
          <Tree value={r.result} label="Result" />
        </section>
      )}
      {r.compensation && (
        <section aria-label="Compensation">
          <h3>Compensation</h3>
          <p>{r.compensation.ran ? "Every step ran. Whether it undid the commit is for you to see." : "It did not run to its end."}</p>
          {r.compensation.error && (
            <p class="error">
              <Stranger text={r.compensation.error} />
            </p>
          )}
          <StepResults steps={r.compensation.steps} label="Steps of the compensation" />
        </section>
      )}
    </div>
  );
}
