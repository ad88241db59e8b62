package workflow

import (
	"time"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/span"
	"agentsvc/schemas/tool"
)

// Spans gets the spans of workflow runs and of their tool calls (trace.Tracer). It does not block.
type Spans interface {
	Run(r span.Run)
	Step(s span.Step)
}

// answered tells the span of a tool call.
func (k *kind) answered(e CallTool, began time.Time, out *tool.Outcome) {
	if k.cfg.Spans == nil {
		return
	}
	k.cfg.Spans.Step(span.Step{Tenant: e.Of.Tenant, Run: e.Of.ID, Idx: e.Step.Idx, Kind: lifecycle.StepTool, Name: e.Step.Call.Plan.Tool,
		OK: !out.IsError, Began: began, Ended: k.cfg.Now()})
}

// ends tells the span of a run that the decision from prev to next has ended.
func (k *kind) ends(prev, next *State) {
	if k.cfg.Spans == nil || !next.Status.Terminal() || prev.Status.Terminal() {
		return
	}
	r := span.Run{Tenant: next.Tenant, ID: next.ID, Workflow: next.Workflow, Began: next.CreatedAt, Ended: *next.FinishedAt, Status: next.Status}
	if next.StartedAt != nil {
		r.Began = *next.StartedAt
	}
	if next.Error != nil {
		r.Code = next.Error.Code
	}
	k.cfg.Spans.Run(r)
}
