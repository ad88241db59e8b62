package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/redact"
	"agentsvc/schemas/skill"
)

// SkillRuns gives the actors of runs of browser skills access to the tables.
type SkillRuns struct{ pool *pgxpool.Pool }

// NewSkillRuns returns a SkillRuns over a pool of the role svc_system.
func NewSkillRuns(pool *pgxpool.Pool) *SkillRuns { return &SkillRuns{pool} }

func (s *SkillRuns) view(t id.TenantID) View {
	return View{q: single{pool: s.pool, tenant: t}, tenant: t}
}

// SkillRun is a row of browser_skill_runs, as its actor reads it.
type SkillRun struct {
	Skill          id.SkillID `db:"skill_id"`
	Slug           string
	Revision       int
	AgentRun       *id.RunID      `db:"agent_run_id"`
	Agent          *id.AgentID    `db:"agent_id"`
	Approval       *id.ApprovalID `db:"approval_id"`
	CreatedBy      string
	Reason         string
	Mode           skill.Mode
	Status         skill.Status
	Code           *skill.Code
	Key            string
	Held           bool   // no other run may have the key
	Args           []byte // sealed to SkillRunArgsAt
	Precommit      []byte
	Steps          []byte
	Verification   []byte
	Result         []byte
	Compensation   []byte
	Fault          []byte
	State          []byte
	CreatedAt      time.Time
	FinishedAt     *time.Time
	Version, Epoch int64
}

// Holds reports whether no other run may have a key because of this one.
func (r *SkillRun) Holds(key string) bool { return r.Held && r.Key == key }

// SkillRunArgsAt returns the AAD of the values of a run.
func SkillRunArgsAt(t id.TenantID, r id.SkillRunID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "browser_skill_runs", Row: r.String(), Column: "args"}
}

// Run returns a run; nil if there is none.
func (s *SkillRuns) Run(ctx context.Context, t id.TenantID, r id.SkillRunID) (*SkillRun, error) {
	return one[SkillRun](ctx, s.view(t), "skillrun_load", t, r)
}

// Holder returns the run that holds an idempotency key; nil if none does.
func (s *SkillRuns) Holder(ctx context.Context, t id.TenantID, key string) (*id.SkillRunID, error) {
	rows, err := scalars[id.SkillRunID](ctx, s.view(t), "skillrun_holder", t, key)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// Skill returns a skill as SkillOf does; nil if there is none.
func (s *SkillRuns) Skill(ctx context.Context, t id.TenantID, of id.SkillID) (*Skill, error) {
	row, err := s.view(t).SkillOf(ctx, of)
	if errors.Is(err, NoSkill("")) {
		return nil, nil
	}
	return row, err
}

// SkillStanding is how the approval of a run of a skill stands, and the run that called it.
type SkillStanding struct {
	Approval *lifecycle.ApprovalStatus // nil: it is not there
	Digest   []byte                    // of the arguments to call
	Ended    *bool                     // the run of the agent or workflow; nil: it is not there
	Workflow *id.WorkflowID            // whose run that is; nil: an agent's
}

// Standing reads an approval and a run; nil ids are not there.
func (s *SkillRuns) Standing(ctx context.Context, t id.TenantID, a *id.ApprovalID, r *id.RunID) (SkillStanding, error) {
	row, err := one[SkillStanding](ctx, s.view(t), "skillrun_standing", t, a, r)
	if err != nil {
		return SkillStanding{}, err
	}
	return *row, nil
}

// shown returns the run as the API shows it: as in the arguments of its approval, values whose key looks secret are redacted.
func (r *SkillRun) shown(run id.SkillRunID) (*api.SkillRun, error) {
	out := &api.SkillRun{ID: run, SkillID: r.Skill, AgentRunID: r.AgentRun, Mode: r.Mode, Status: r.Status, Code: r.Code, Result: api.Value(redact.JSON(r.Result)),
		CreatedAt: r.CreatedAt, FinishedAt: r.FinishedAt}
	if r.Mode == skill.Run {
		out.ApprovalID = r.Approval
	}
	var kept struct { // see actors/skillrun
		Stand    skill.State `json:"stand"`
		Repeated bool        `json:"repeated"`
	}
	for _, c := range []struct {
		doc []byte
		to  any
	}{{r.State, &kept}, {redact.JSON(r.Precommit), &out.Precommit}, {r.Steps, &out.Steps}, {r.Verification, &out.Verification}, {r.Compensation, &out.Compensation}} {
		if len(c.doc) > 0 {
			if err := json.Unmarshal(c.doc, c.to); err != nil {
				return nil, fmt.Errorf("read the record of skill run %s: %w", run, err)
			}
		}
	}
	out.Duplicate = kept.Repeated
	if edits := kept.Stand.Plan.Edits; edits != "" {
		may := edits == skill.EditsAllowed
		out.AllowEdit = &may
	}
	if c := out.Compensation; c != nil { // earlier builds wrote null for no steps, and that all ran where an error says otherwise
		c.Ran = c.Ran && c.Error == nil
		if c.Steps == nil {
			c.Steps = []skill.StepResult{}
		}
	}
	return out, nil
}

// SkillRuns returns runs of browser skills, newest first, after at; there may be one more than
// limit.
func (v View) SkillRuns(ctx context.Context, f api.SkillRunFilter, at id.SkillRunID, limit int) ([]api.SkillRun, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[skillRunRow](ctx, v.planned(), "skillruns", v.tenant, from, f.Skill, f.AgentRun, n)
	if err != nil {
		return nil, err
	}
	out := make([]api.SkillRun, len(rows))
	for i := range rows {
		run, err := rows[i].shown(rows[i].ID)
		if err != nil {
			return nil, err
		}
		out[i] = *run
	}
	return out, nil
}

// SkillRun returns one run; nil if there is none.
func (v View) SkillRun(ctx context.Context, r id.SkillRunID) (*api.SkillRun, error) {
	row, err := one[SkillRun](ctx, v, "skillrun_load", v.tenant, r)
	if err != nil || row == nil {
		return nil, err
	}
	return row.shown(r)
}

// HasSkillRun reports whether a run of a browser skill has a row.
func (v View) HasSkillRun(ctx context.Context, r id.SkillRunID) (bool, error) {
	found, err := scalars[bool](ctx, v, "skillrun_exists", v.tenant, r)
	return len(found) == 1 && found[0], err
}

type skillRunRow struct {
	ID id.SkillRunID
	SkillRun
}
