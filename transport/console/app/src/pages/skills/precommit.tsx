// What a page showed before the commit step of a skill. A person decides on it, and its receipt keeps it.

import { Stranger } from "../../controls/text";
import { visible } from "../../lib/hostile";
import type { SkillRun } from "../../lib/skills";
import { Shot } from "./shot";

export const Precommit = ({ page }: { page: NonNullable<SkillRun["precommit"]> }) => (
  <section aria-label="Before the commit">
    <h3>Before the commit</h3>
    <div class="precommit">
      <Shot of={page.screenshot_key} label="page before the commit" large />
      <dl class="facts-grid">
        <div class="wide">
          <dt>Page</dt>
          <dd>
            <Stranger text={page.title || page.url} line /> <Stranger text={page.title ? page.url : ""} line chars={200} />
          </dd>
        </div>
        {Object.entries(page.values).map(([k, v]) => (
          <div key={k}>
            <dt>{visible(k)}</dt>
            <dd>
              <Stranger text={v} line />
            </dd>
          </div>
        ))}
      </dl>
    </div>
  </section>
);
