package skillrun

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/msg"
)

// keep is how long the row of a person's dry run stays. The run of an agent's call stays as long as
// the agent's run.
const keep = 90 * 24 * time.Hour

// Traits describe the kind skillrun. Its rows refer to runs, so it comes after the kind run.
var Traits = durable.Traits{
	Name:   msg.KindSkillRun,
	Tables: []*journal.Table{runs},
	Work:   &feed.Work{Find: feed.Where("browser_skill_runs", "finished_at IS NULL AND status <> 'prepared'")},
	Keep:   []feed.Retention{feed.Aged("browser_skill_runs", "finished_at", "agent_run_id IS NULL AND finished_at IS NOT NULL", keep)},
	Sealed: []reseal.Column{{Table: "browser_skill_runs", Name: "args", By: reseal.ByID}},
	Messages: []msg.Type{
		msg.Of[msg.StartSkill]("start_skill"), msg.Of[msg.SkillStands]("skill_stands"), msg.Of[msg.CommitSkill]("commit_skill"),
		msg.Of[msg.LookSkill]("look_skill"), msg.Of[msg.WithdrawSkill]("withdraw_skill"), msg.Of[msg.RepeatSkill]("repeat_skill"),
		msg.Of[Clicked]("skill_clicked"),
	},
	Checks: []feed.Check{
		{Name: "waiting runs of browser skills whose approval is refused, without a timer", SQL: forgotten},
		{Name: "waiting runs of browser skills whose calling run has ended, without a timer", SQL: abandoned},
	},
	Collectors: []prometheus.Collector{ended, seconds, sessions, waiting},
}

const forgotten = `SELECT count(*), coalesce(min(s.id::text), '') FROM browser_skill_runs s JOIN approvals a ON a.tenant_id = s.tenant_id AND a.id = s.approval_id
WHERE s.status = 'prepared' AND a.status IN ('rejected', 'responded', 'expired', 'cancelled')
  AND NOT EXISTS (SELECT FROM timers t WHERE t.tenant_id = s.tenant_id AND t.kind = 'skillrun' AND t.entity_id = s.id)`

const abandoned = `SELECT count(*), coalesce(min(s.id::text), '') FROM browser_skill_runs s JOIN runs r ON r.tenant_id = s.tenant_id AND r.id = s.agent_run_id
WHERE s.status = 'prepared' AND r.finished_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM timers t WHERE t.tenant_id = s.tenant_id AND t.kind = 'skillrun' AND t.entity_id = s.id)`
