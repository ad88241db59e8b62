package run

import (
	"time"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/span"
)

// Spans gets the spans of runs, model turns and tool calls (trace.Tracer). It does not block.
type Spans interface {
	Run(r span.Run)
	Step(s span.Step)
}

// turned tells the span of a model turn. answer is nil if the turn was no longer owed.
func (k *kind) turned(e ModelCall, began time.Time, answer any) {
	if k.cfg.Spans == nil || answer == nil {
		return
	}
	_, ok := answer.(ModelAnswered)
	k.tell(e.Of, span.Step{Idx: e.Idx, Kind: lifecycle.StepLLM, Name: e.Of.Agent.Manifest.Model.Name, OK: ok, Began: began})
}

// answered tells the span of a tool call. answer is nil if the call was no longer owed.
func (k *kind) answered(e ToolCall, began time.Time, answer any) {
	if k.cfg.Spans == nil || answer == nil {
		return
	}
	a, ok := answer.(ToolAnswered)
	k.tell(e.Of, span.Step{Idx: e.Call.Idx, Kind: lifecycle.StepTool, Name: e.Call.Plan.Tool, OK: ok && !a.Outcome.IsError, Began: began})
}

func (k *kind) tell(s *State, step span.Step) {
	step.Tenant, step.Run, step.Ended = s.Tenant, s.ID, k.cfg.Now()
	k.cfg.Spans.Step(step)
}

// ends tells the span of a run that the decision from prev to next has ended.
func (k *kind) ends(prev, next *State) {
	if k.cfg.Spans == nil || !next.Status.Terminal() || prev.Status.Terminal() {
		return
	}
	r := span.Run{Tenant: next.Tenant, ID: next.ID, Parent: next.Parent, Agent: next.AgentID, Began: next.CreatedAt, Ended: *next.FinishedAt, Status: next.Status}
	if next.StartedAt != nil {
		r.Began = *next.StartedAt
	}
	if next.Error != nil {
		r.Code = next.Error.Code
	}
	k.cfg.Spans.Run(r)
}
