package toolbox

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
)

// repeatWait is how long a repeat of a request waits for the dry run of the first one.
const repeatWait = 5 * time.Second

func noBrowser() error {
	return problem.New(problem.CodeBrowserSkillUnavailable, "This node has no browser.")
}

// DryRun implements platform.SkillRuns: a dry run by a person. It has no run of an agent, and an
// idempotency key of its own, which repeats of the request share on all nodes. A caller that leaves
// ends it not: its row says what became of it, and a repeat waits for it.
func (b *Toolbox) DryRun(ctx context.Context, by store.By, of *store.Skill, values skill.Values) (*api.SkillRun, error) {
	if b.Skills == nil {
		return nil, noBrowser()
	}
	run, mine, err := b.beginDryRun(ctx, by, of, values)
	if err != nil {
		return nil, err
	}
	if !mine {
		return b.Tables.View(by.Tenant).SkillRun(ctx, run)
	}
	row, err := b.awaitRow(ctx, by.Tenant, run, hasEnded)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, errGone):
		return nil, store.NoSkill("browser skill")
	case err != nil: // the run goes on: its row says what becomes of it
		return nil, fmt.Errorf("read the dry run %s: %w", run, err)
	case unperformed(row) != "":
		return nil, problem.New(problem.CodeBrowserSkillUnavailable, unperformed(row))
	case row.Status != skill.Succeeded:
		return nil, notLanded(run, row)
	}
	return b.Tables.View(by.Tenant).SkillRun(ctx, run)
}

func hasEnded(r *store.SkillRun) bool { return r.FinishedAt != nil }

// startDryRun returns the message that begins a dry run by a person. Its key is that of the request
// if this one has an Idempotency-Key.
func startDryRun(by store.By, of *store.Skill, values skill.Values) msg.StartSkill {
	run := id.SkillRunID{UUID: id.NewAnywhere()}
	asks := id.RunID(run) // stands for the run of an agent
	if by.Idem != nil {
		sum := sha256.Sum256(append(by.Idem.Digest[:], by.Idem.Fingerprint[:]...))
		copy(asks.UUID[:], sum[:])
	}
	return msg.StartSkill{
		Run: run, Skill: of.ID, Slug: of.Slug, Taught: of.Revision, Plan: skill.PlanOf(skill.DryRun, of.Definition, of.Policy, false),
		Key: skill.Key(by.Tenant, asks, of.Slug, skill.OpDryRun, values), Values: values.JSON(), By: msg.By{Actor: by.Actor, IP: by.IP},
	}
}

// beginDryRun begins a dry run. If an earlier request with the same Idempotency-Key has one in
// progress, it waits for that one, and returns it if it lands: it is not mine then. One that does
// not land gives way.
func (b *Toolbox) beginDryRun(ctx context.Context, by store.By, of *store.Skill, values skill.Values) (run id.SkillRunID, mine bool, err error) {
	start := startDryRun(by, of, values)
	run = start.Run
	patience, cancel := context.WithTimeout(ctx, repeatWait)
	defer cancel()
	for range keyTries {
		if by.Idem != nil {
			first, err := b.Skills.Rows.Holder(ctx, by.Tenant, start.Key)
			if err != nil {
				return run, false, err
			}
			if first != nil {
				row, err := b.awaitRow(patience, by.Tenant, *first, hasEnded)
				switch {
				case ctx.Err() != nil:
					return run, false, ctx.Err()
				case patience.Err() != nil:
					return run, false, &problem.Error{Code: problem.CodeIdempotencyInProgress, RetryAfter: time.Second,
						Detail: "The dry run of the first request with this Idempotency-Key has not ended yet."}
				case err != nil && !errors.Is(err, errGone):
					return run, false, err
				case err == nil && row.Status == skill.Succeeded:
					return *first, false, nil
				}
			}
		}
		if b.Skills.Available() != nil {
			return run, false, noBrowser()
		}
		if _, err = b.Skills.Ask(ctx, by.Tenant, run, start); err == nil {
			return run, true, nil
		}
		if by.Idem == nil || !errors.Is(err, problem.New(problem.CodeInUse, "")) {
			break
		}
	}
	return run, false, err
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
