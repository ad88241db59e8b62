package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
)

// DryRun implements platform.SkillRuns: a dry run by a person. It has no run of an agent, and an
// idempotency key of its own. A caller that leaves ends it not: its row says what became of it.
func (b *Toolbox) DryRun(ctx context.Context, by store.By, of *store.Skill, values skill.Values) (*api.SkillRun, error) {
	unavailable := problem.New(problem.CodeBrowserSkillUnavailable, "This node has no browser.")
	if b.Skills == nil || b.Skills.Available() != nil {
		return nil, unavailable
	}
	run := id.SkillRunID{UUID: id.NewAnywhere()}
	_, err := b.Skills.Ask(ctx, by.Tenant, run, msg.StartSkill{
		Run: run, Skill: of.ID, Slug: of.Slug, Taught: of.Revision, Plan: skill.PlanOf(skill.DryRun, of.Definition, of.Policy, false),
		Key: skill.Key(by.Tenant, id.RunID(run), of.Slug, skill.OpDryRun, values), Values: values.JSON(), By: msg.By{Actor: by.Actor, IP: by.IP},
	})
	if err != nil {
		return nil, err
	}
	row, err := b.awaitRow(ctx, by.Tenant, run, func(r *store.SkillRun) bool { return r.FinishedAt != nil })
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, errGone):
		return nil, store.NoSkill("browser skill")
	case err != nil: // the run goes on: its row says what becomes of it
		return nil, fmt.Errorf("read the dry run %s: %w", run, err)
	case hadNoBrowser(row):
		return nil, unavailable
	case row.Status != skill.Succeeded:
		return nil, notLanded(run, row)
	}
	return b.Tables.View(by.Tenant).SkillRun(ctx, run)
}

// notLanded returns the problem for a run that ended without landing.
func notLanded(run id.SkillRunID, row *store.SkillRun) *problem.Error {
	var f skill.Fault
	_ = json.Unmarshal(row.Fault, &f) // written by the actor
	ext := map[string]any{"code": skill.CodeStepFailed, "run_id": run}
	if row.Code != nil {
		ext["code"] = *row.Code
	}
	if f.StepID != "" {
		ext["step_id"] = f.StepID
	}
	if len(f.Selectors) > 0 {
		ext["selectors"] = f.Selectors
	}
	if f.Field != "" {
		ext["field"] = f.Field
	}
	if f.URL != "" {
		ext["url"] = f.URL
	}
	p := problem.New(problem.CodeBrowserSkillRunFailed, f.Message)
	p.Extensions = map[string]any{"extensions": ext}
	return p
}

// Runs implements platform.SkillRuns.
func (b *Toolbox) Runs(ctx context.Context, v store.View, f api.SkillRunFilter, at id.SkillRunID, limit int) ([]api.SkillRun, error) {
	return v.SkillRuns(ctx, f, at, limit)
}

// Run implements platform.SkillRuns.
func (b *Toolbox) Run(ctx context.Context, v store.View, run id.SkillRunID) (*api.SkillRun, error) {
	return v.SkillRun(ctx, run)
}
