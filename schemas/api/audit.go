package api

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// AuditEntry is one row of the audit log.
type AuditEntry struct {
	ID     id.AuditID  `json:"id" doc:"The id, a version 7 UUID."`
	At     time.Time   `json:"at" doc:"UTC."`
	Actor  string      `json:"actor" doc:"apikey:<id>, user:<id>, system, trigger:<id>, embed:eu:<id> or embed:vid:<id>"`
	Action string      `json:"action" doc:"What was done, as <kind>.<verb>."`
	Target AuditTarget `json:"target"`
	IP     *string     `json:"ip" doc:"The client's address; null where there was none, or it is not for this tenant to know."`
	Detail Value       `json:"detail" doc:"What else is known; null: nothing. Never a credential or content."`
}

// AuditTarget is the target of an audited action.
type AuditTarget struct {
	Kind string  `json:"kind" doc:"As in paths, in the singular."`
	ID   id.UUID `json:"id" doc:"Its id."`
}

// UsageGroup is the usage of one day, agent, model or kind: only the member of the requested
// group is present.
type UsageGroup struct {
	Day              string                   `json:"day,omitempty" doc:"YYYY-MM-DD, in UTC."`
	AgentID          Opt[id.AgentID]          `json:"agent_id,omitzero" doc:"null: no agent."`
	Model            Opt[string]              `json:"model,omitzero" doc:"Empty: no model."`
	Kind             Opt[lifecycle.UsageKind] `json:"kind,omitzero"`
	Runs             int64                    `json:"runs" doc:"Runs that used something."`
	TokensIn         int64                    `json:"tokens_in" doc:"Input tokens."`
	TokensOut        int64                    `json:"tokens_out" doc:"Output tokens."`
	CostUSD          float64                  `json:"cost_usd" doc:"US dollars."`
	BrowserSkillRuns int64                    `json:"browser_skill_runs" doc:"Runs of browser skills."`
}

// UsageRecord is one billed use.
type UsageRecord struct {
	ID        id.UsageID          `json:"id" doc:"The id, a version 7 UUID."`
	At        time.Time           `json:"at" doc:"UTC."`
	Kind      lifecycle.UsageKind `json:"kind"`
	RunID     *id.RunID           `json:"run_id" doc:"The run that used it."`
	AgentID   *id.AgentID         `json:"agent_id" doc:"The agent that used it."`
	Model     string              `json:"model" doc:"The model; empty: none."`
	TokensIn  int64               `json:"tokens_in" doc:"Input tokens."`
	TokensOut int64               `json:"tokens_out" doc:"Output tokens."`
	CostUSD   float64             `json:"cost_usd" doc:"US dollars."`
	Detail    Value               `json:"detail" doc:"What else is known; null: nothing."`
}
